package demo

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"sandgate/agent"
	"sandgate/agent/scripted"
)

// agent has a coding agent work in the sandbox: a real model where the environment
// has a key for one, else a scripted one, which is said.
func (s *show) agent() error {
	const task = "Write fib.py, which prints the tenth Fibonacci number, and run it until it is right."
	flags := ""
	if os.Getenv("ANTHROPIC_API_KEY") == "" {
		url, stop, err := serveModel()
		if err != nil {
			return err
		}
		defer stop()
		s.screen.note("There is no ANTHROPIC_API_KEY, so the model is a scripted one: what it says is fixed, what its\ntools do is real.")
		flags = "--base-url " + url + " "
	}
	r, err := s.do("ssh gate agent web " + flags + quote(task))
	if err != nil {
		return err
	}
	if !strings.Contains(r.text, "agent --resume run-") {
		return errors.New("the agent did not say how to go on")
	}
	r, err = s.do("ssh web python3 fib.py")
	if err == nil && strings.TrimSpace(r.text) != "55" {
		err = errors.New("the program that the agent wrote is wrong")
	}
	return err
}

// serveModel serves a model that uses all six tools.
func serveModel() (url string, stop func(), err error) {
	type input map[string]any
	turn := func(blocks ...agent.Block) []agent.Block { return blocks }
	model := scripted.New(
		turn(agent.Text("I look what is there."), scripted.Call("1", "glob", input{"pattern": "*.py"})),
		turn(scripted.Call("2", "write", input{"path": "fib.py", "content": "a, b = 0, 1\nfor i in range(11):\n    a, b = b, a + b\nprint(a)\n"})),
		turn(scripted.Call("3", "exec", input{"command": "python3 fib.py"})),
		turn(agent.Text("89 is the eleventh. I look where it counts."), scripted.Call("4", "grep", input{"pattern": "range", "path": "fib.py"}), scripted.Call("5", "read", input{"path": "fib.py"})),
		turn(scripted.Call("6", "edit", input{"path": "fib.py", "old": "range(11)", "new": "range(10)"})),
		turn(scripted.Call("7", "exec", input{"command": "python3 fib.py"})),
		turn(agent.Text("It prints 55, which is right.")),
	)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: model, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(l)
	return "http://" + l.Addr().String(), func() { server.Close() }, nil
}
