package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sandgate/agent"
)

// A line that would be too long keeps its form: only what makes it long is cut.
func TestWireLineLong(t *testing.T) {
	content := strings.Repeat("naïve \"text\"\n", 200_000)
	input, err := json.Marshal(map[string]string{"path": "big.txt", "content": content})
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{"session_id": "run-x", "uuid": "u", "message": agent.Message{Role: agent.Assistant, Content: []agent.Block{
		agent.Text("I write."), {Type: agent.ToolUseBlock, ID: "t1", Name: "write", Input: input},
	}}}
	line, err := wireLine(agent.Event{Seq: 7, Time: time.Now(), Type: agent.TypeAssistant, Fields: fields}, nil)
	if err != nil || len(line) > maxLine || line[len(line)-1] != '\n' {
		t.Fatalf("%d bytes, %v", len(line), err)
	}
	var got struct {
		Seq     int
		Type    string
		Message agent.Message
		Omitted []omission
	}
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(content))
	want := omission{At: "/message/content/1/input/content", Path: "big.txt", Bytes: len(content), SHA256: hex.EncodeToString(sum[:])}
	if len(got.Omitted) != 1 || got.Omitted[0] != want {
		t.Errorf("omitted: %+v", got.Omitted)
	}
	if got.Seq != 7 || got.Type != agent.TypeAssistant || len(got.Message.Content) != 2 || got.Message.Content[1].ID != "t1" || got.Message.Content[0].Text != "I write." {
		t.Errorf("got %.400s", line)
	}

	// Also many strings, none of them long by itself.
	var many []agent.Block
	for range 40 {
		many = append(many, agent.Text(strings.Repeat("x", 60<<10)))
	}
	fields["message"] = agent.Message{Role: agent.Assistant, Content: many}
	if line, err = wireLine(agent.Event{Seq: 8, Type: agent.TypeAssistant, Fields: fields}, nil); err != nil || len(line) > maxLine || json.Unmarshal(line, &got) != nil || len(got.Message.Content) != 40 {
		t.Errorf("%d bytes, %v", len(line), err)
	}
}
