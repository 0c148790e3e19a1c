package story

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/testscript"

	"sandgate/agent"
	"sandgate/agent/scripted"
	"sandgate/sandbox/image/imagetest"
)

// model serves a scripted model.
func model(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: model FILE")
	}
	var turns [][]struct {
		Text  string
		Tool  string
		Input json.RawMessage
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &turns))
	var blocks [][]agent.Block
	for i, turn := range turns {
		var said []agent.Block
		for k, b := range turn {
			if b.Tool != "" {
				said = append(said, scripted.Call(fmt.Sprintf("call_%d_%d", i, k), b.Tool, b.Input))
			} else {
				said = append(said, agent.Text(b.Text))
			}
		}
		blocks = append(blocks, said)
	}
	s := httptest.NewServer(scripted.New(blocks...))
	ts.Defer(s.Close)
	ts.Setenv("MODEL_URL", s.URL)
}

// callTools calls tools of the sandbox box over MCP, one after the other on one
// connection, by way of ssh. Each line of a file is a tool and its arguments as JSON;
// what came back is written to another file.
func callTools(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mcp CALLS ANSWERS")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "story", Version: "1"}, nil)
	ssh := exec.Command(filepath.Join(storyOf(ts).bin, "ssh"), "-s", "box", "mcp")
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: ssh}, nil)
	ts.Check(err)
	defer session.Close()
	var answers strings.Builder
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		name, raw, _ := strings.Cut(strings.TrimSpace(line), " ")
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(raw)})
		ts.Check(err)
		fmt.Fprintf(&answers, "== %s, error %v\n", name, r.IsError)
		for _, c := range r.Content {
			if text, ok := c.(*mcp.TextContent); ok {
				answers.WriteString(text.Text + "\n")
			}
		}
	}
	ts.Logf("%s", answers.String())
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(answers.String()), 0o600))
}

// serveRegistry is the story's command registry: it runs one until the story ends,
// whose address is in a variable.
func serveRegistry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: registry NAME [USER:PASSWORD]")
	}
	user, password := "", ""
	if len(args) == 2 {
		user, password, _ = strings.Cut(args[1], ":")
	}
	r := imagetest.Serve(user, password)
	ts.Defer(r.Close)
	s := storyOf(ts)
	if s.registries == nil {
		s.registries = make(map[string]*imagetest.Registry)
	}
	s.registries[r.Address] = r
	ts.Setenv(args[0], r.Address)
}

// pushImage is the story's command push: it makes an image of programs of this host
// and pushes it. USER=, DIR=, CMD= and ENV= set what is in its configuration; FOLDER/:UID
// and FILE:UID add what belongs to somebody, of the story's own files if there is
// one of that name; LINK>TARGET adds a symbolic link.
func pushImage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: push IMAGE [PROGRAM|USER=…|DIR=…|ENV=…|ENTRYPOINT=…|CMD=…|FILE:UID|LINK>TARGET]...")
	}
	var image imagetest.Image
	var files []imagetest.File
	for _, word := range args[1:] {
		key, value, isSetting := strings.Cut(word, "=")
		file, uid, isFile := strings.Cut(word, ":")
		link, target, isLink := strings.Cut(word, ">")
		switch {
		case isLink:
			files = append(files, imagetest.File{Name: link, Target: target})
		case isSetting && key == "USER":
			image.Config.User = value
		case isSetting && key == "DIR":
			image.Config.WorkingDir = value
		case isSetting && key == "ENV":
			image.Config.Env = append(image.Config.Env, value)
		case isSetting && key == "ENTRYPOINT":
			image.Config.Entrypoint = append(image.Config.Entrypoint, value)
		case isSetting && key == "CMD":
			image.Config.Cmd = append(image.Config.Cmd, value)
		case isFile:
			id, err := strconv.Atoi(uid)
			ts.Check(err)
			f := imagetest.File{Name: strings.TrimPrefix(file, "/"), UID: id, GID: id}
			if text, err := os.ReadFile(ts.MkAbs(f.Name)); err == nil {
				f.Text = string(text)
			}
			files = append(files, f)
		default:
			image.Programs = append(image.Programs, word)
		}
	}
	if len(files) > 0 {
		image.Layers = append(image.Layers, files)
	}
	img, err := image.Build()
	ts.Check(err)
	registry, name, _ := strings.Cut(args[0], "/")
	_, err = storyOf(ts).registries[registry].Push(name, img)
	ts.Check(err)
}
