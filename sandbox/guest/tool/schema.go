package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"
)

// Names are the names of the tools, in the order in which they are shown.
var Names = []string{"exec", "read", "write", "edit", "glob", "grep"}

// A Definition is a tool as a model, or a client that has one, is told of it.
type Definition struct {
	Name        string
	Description string
	Input       *jsonschema.Schema
	Output      *jsonschema.Schema
	ReadOnly    bool // it changes nothing, so calls of it may run side by side
}

// Definitions returns all tools, in the order of Names.
func Definitions() []Definition {
	return []Definition{
		define[ExecArgs, ExecOutput]("exec", false, `Runs a command with bash (sh where there is none) in the sandbox and returns its exit code, stdout and stderr. `+
			`A cd lasts for later calls, variables do not. stdin is empty and there is no terminal. If the command has not ended after wait_s seconds it goes on as a job: `+
			`call again with job to wait for more (cursor says where the new output begins), to send it stdin or a signal. After timeout_s it is ended. `+
			`For servers use background=true. Long output is cut in the middle; output_path has all of it.`),
		define[ReadArgs, ReadOutput]("read", true, `Reads a file with line numbers, 2000 lines at a time, or lists a folder. Images are shown as such. `+
			`A file has to be read before it can be edited or overwritten.`),
		define[WriteArgs, WriteOutput]("write", false, `Writes a whole file, and the folders above it. To overwrite a file it must have been read before, or expect must match. `+
			`For small changes use edit.`),
		define[EditArgs, EditOutput]("edit", false, `Replaces text in a file that was read before. old has to be exactly what is in the file, without line numbers, and be there once; `+
			`else give more lines, near_line, or replace_all. new is literal. Line ends, encoding and all other bytes stay as they are.`),
		define[GlobArgs, GlobOutput]("glob", true, `Finds files by name, the newest first. Files in .gitignore are left out, links are listed but not followed.`),
		define[GrepArgs, GrepOutput]("grep", true, `Searches the contents of files with a regular expression (RE2, or Rust's where ripgrep is: no lookaround, no backreferences). `+
			`Files in .gitignore, binary files and those over 10 MiB are left out.`),
	}
}

// define makes the schemas from the types, so that they cannot differ.
func define[A, O any](name string, readOnly bool, description string) Definition {
	in := schemaOf[A]()
	in.AdditionalProperties = nil // unknown ones are ignored and told
	for name, p := range in.Properties {
		in.Properties[name] = plain(p)
	}
	for _, p := range parametersOf(reflect.TypeFor[A]()) {
		s := in.Properties[p.name]
		for _, v := range p.enum {
			s.Enum = append(s.Enum, v)
		}
		if p.min != nil {
			s.Minimum = jsonschema.Ptr(float64(*p.min))
		}
		if p.max != nil {
			s.Maximum = jsonschema.Ptr(float64(*p.max))
		}
	}
	out := schemaOf[O]()
	out.AdditionalProperties = nil // a newer guest may say more
	return Definition{Name: name, Description: description, Input: in, Output: out, ReadOnly: readOnly}
}

func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[[]byte](): {Type: "string", ContentEncoding: "base64"},
	}})
	if err != nil {
		panic(err) // only our own types, see the test
	}
	return s
}

// plain turns "null or T" into T: an argument that may be left out need not be null
// as well. Clients know less of schemas than they should.
func plain(s *jsonschema.Schema) *jsonschema.Schema {
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	if s.Items != nil {
		s.Items = plain(s.Items)
	}
	return s
}

// DecodeOutput reads the output of a tool as it comes from a guest, which may send
// anything: what is returned has the fields of that tool's output, and is text.
func DecodeOutput(name string, raw []byte) (Output, error) {
	var out Output
	switch name {
	case "exec":
		out = new(ExecOutput)
	case "read":
		out = new(ReadOutput)
	case "write":
		out = new(WriteOutput)
	case "edit":
		out = new(EditOutput)
	case "glob":
		out = &GlobOutput{}
	case "grep":
		out = new(GrepOutput)
	case Guidance:
		out = new(GuidanceOutput)
	case Recall:
		out = new(RecallOutput)
	default:
		return nil, fmt.Errorf("output of an unknown tool %q", name)
	}
	if err := json.Unmarshal(withoutNUL(raw), out); err != nil {
		return nil, fmt.Errorf("malformed output of %s: %w", name, err)
	}
	return out, nil
}

// DecodeError reads an error as it comes from a guest.
func DecodeError(raw []byte) (*Error, error) {
	e := new(Error)
	if err := json.Unmarshal(withoutNUL(raw), e); err != nil {
		return nil, fmt.Errorf("malformed error: %w", err)
	}
	usual, ok := remedies[e.Code]
	if !ok {
		return nil, fmt.Errorf("impossible error %.40q", string(e.Code))
	}
	e.Remedy = cmp.Or(e.Remedy, usual)
	return e, nil
}

// withoutNUL replaces the character NUL in the strings of JSON, which would make a
// conversation unusable for good. All else that is no text JSON itself replaces.
func withoutNUL(raw []byte) []byte {
	nul := []byte(`\u0000`)
	if !bytes.Contains(raw, nul) {
		return raw
	}
	out := bytes.Clone(raw)
	for at := 0; ; {
		i := bytes.Index(out[at:], nul)
		if i < 0 {
			return out
		}
		at += i
		if !escaped(string(out[max(0, at-64):at]), min(at, 64)) { // else it is a backslash, and text
			copy(out[at:], `\ufffd`)
		}
		at += len(nul)
	}
}
