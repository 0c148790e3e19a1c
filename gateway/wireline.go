package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"sandgate/agent"
)

// wireLine returns an event as a line of at most maxLine bytes. Strings that make it
// longer are cut, and the line says where, and what they were.
func wireLine(e agent.Event, line []byte) ([]byte, error) {
	if e.Type == agent.TypeSystem && e.Subtype == agent.SubtypeCompact {
		delete(e.Fields, "messages") // the loop's own
		line = nil
	}
	var err error
	if line == nil {
		if line, err = json.Marshal(e); err != nil {
			return nil, err
		}
	}
	if len(line) >= maxLine && withoutPictures(&e) {
		if line, err = json.Marshal(e); err != nil {
			return nil, err
		}
	}
	for _, most := range []int{64 << 10, 1 << 10} {
		if len(line) < maxLine {
			break
		}
		if line, err = withoutLongStrings(line, most); err != nil {
			return nil, err
		}
	}
	if len(line) >= maxLine {
		sum := sha256.Sum256(line)
		short := agent.Event{Seq: e.Seq, Time: e.Time, Type: e.Type, Subtype: e.Subtype, Fields: map[string]any{
			"session_id": e.Fields["session_id"], "uuid": e.Fields["uuid"], "sandbox": e.Fields["sandbox"],
			"omitted": map[string]any{"bytes": len(line), "sha256": hex.EncodeToString(sum[:])},
		}}
		if line, err = json.Marshal(short); err != nil {
			return nil, err
		}
	}
	return append(line, '\n'), nil
}

// withoutPictures puts words in place of the pictures of an event, and says whether
// there were any. Which file they are of is in its other fields.
func withoutPictures(e *agent.Event) bool {
	raw, ok := e.Fields["message"].(json.RawMessage)
	var m agent.Message
	if !ok || json.Unmarshal(raw, &m) != nil {
		return false
	}
	had := false
	for i, b := range m.Content {
		had = had || len(b.Images) > 0
		m.Content[i] = b.WithoutImages("it is too long for this line")
	}
	if had {
		e.Fields["message"] = m
	}
	return had
}

// An omission says of a string that was cut where in the line it is (RFC 6901), what it
// was, and, if that is known, which file in the sandbox it is of.
type omission struct {
	At     string `json:"at"`
	Path   string `json:"path,omitempty"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// keptOfLong is how much of a string that is cut is left.
const keptOfLong = 200

// withoutLongStrings returns a line in which no string has more than most bytes.
func withoutLongStrings(line []byte, most int) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return nil, err
	}
	var cut []omission
	var shorten func(v any, at, path string) any
	shorten = func(v any, at, path string) any {
		switch v := v.(type) {
		case map[string]any:
			for _, name := range []string{"path", "output_path"} {
				if p, ok := v[name].(string); ok && len(p) < most {
					path = p
				}
			}
			for k, e := range v {
				v[k] = shorten(e, at+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(k), path)
			}
		case []any:
			for i, e := range v {
				v[i] = shorten(e, fmt.Sprint(at, "/", i), path)
			}
		case string:
			if len(v) <= most {
				break
			}
			sum := sha256.Sum256([]byte(v))
			cut = append(cut, omission{At: at, Path: path, Bytes: len(v), SHA256: hex.EncodeToString(sum[:])})
			n := keptOfLong
			for !utf8.RuneStart(v[n]) {
				n--
			}
			return fmt.Sprintf("%s… (%d bytes in all)", v[:n], len(v))
		}
		return v
	}
	shorten(fields, "", "")
	if before, ok := fields["omitted"].([]any); ok { // what was cut is not cut again
		for _, o := range cut {
			before = append(before, o)
		}
		fields["omitted"] = before
	} else {
		fields["omitted"] = cut
	}
	return json.Marshal(fields)
}
