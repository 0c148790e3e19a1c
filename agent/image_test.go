package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

func picture(t testing.TB, width, height int) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestNewImage(t *testing.T) {
	small := picture(t, 3, 2)
	webp := "RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x01\x00\x00"
	for _, tt := range []struct {
		mime string
		data []byte
		want string // in the error
	}{
		{"image/png", small, ""},
		{"image/webp", []byte(webp), ""},
		{"image/webp", []byte(strings.Replace(webp, "\x02\x00\x00\x01", "\xff\xff\x00\x01", 1)), "65536x2 pixels"},
		{"image/webp", []byte(webp[:20]), "malformed"},
		{"image/png", picture(t, maxImageSide+1, 1), "8001x1 pixels"},
		{"image/png", append(small, make([]byte, maxImageBytes)...), "bytes; make a smaller one"},
		{"image/png", small[:20], "unexpected EOF"},
		{"image/jpeg", small, "cannot be shown"},
		{"image/svg+xml", []byte("<svg/>"), "kind"},
	} {
		i, err := NewImage(tt.mime, tt.data)
		if tt.want == "" && (err != nil || i.MIME != tt.mime) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s of %d bytes: %v, want %q", tt.mime, len(tt.data), err, tt.want)
		}
	}
}

func FuzzNewImage(f *testing.F) {
	f.Add("image/png", picture(f, 2, 2))
	f.Add("image/webp", []byte("RIFF\x00\x00\x00\x00WEBPVP8L\x00\x00\x00\x00\x2f\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add("image/webp", []byte("RIFF\x00\x00\x00\x00WEBPVP8 \x00\x00\x00\x00\x00\x00\x00\x9d\x01\x2a\x01\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, mime string, data []byte) {
		if i, err := NewImage(mime, data); err == nil && len(i.Data) != len(data) {
			t.Error("it is another image")
		}
	})
}

// A block is in JSON as Anthropic's API has it, and comes back as it was.
func TestBlockJSON(t *testing.T) {
	b := Block{Type: ToolResultBlock, ToolUseID: "t", Result: "x", Images: []Image{{"image/png", []byte("png")}}}
	raw, err := json.Marshal(b)
	want := `{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"cG5n"}}]}`
	if err != nil || string(raw) != want {
		t.Errorf("got %s, %v", raw, err)
	}
	for _, b := range []Block{b, {Type: ToolResultBlock, Result: "x", IsError: true}, Text("y")} {
		raw, _ := json.Marshal(b)
		var back Block
		if err := json.Unmarshal(raw, &back); err != nil || !reflect.DeepEqual(back, b) {
			t.Errorf("%s came back as %+v, %v", raw, back, err)
		}
	}
}

// Each provider is shown the picture in its own way.
func TestImagesOnTheWire(t *testing.T) {
	var body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	req := Request{Messages: []Message{
		{Role: User, Content: []Block{Text("look")}},
		{Role: Assistant, Content: []Block{use("t1", "read", `{"path":"p.png"}`)}},
		{Role: User, Content: []Block{{Type: ToolResultBlock, ToolUseID: "t1", Result: "p.png: 3 bytes", Images: []Image{{"image/png", []byte("png")}}}, Text("and?")}},
	}}
	at := Endpoint{BaseURL: server.URL, Key: "k"}
	for _, tt := range []struct {
		model Model
		want  []string
	}{
		{Anthropic("m", at), []string{`"source":{"data":"cG5n","media_type":"image/png","type":"base64"},"type":"image"`}},
		{OpenAI("m", at), []string{`"type":"input_image"`, `"image_url":"data:image/png;base64,cG5n"`, `"text":"p.png: 3 bytes","type":"input_text"`}},
		{Chat("m", at), []string{`"image_url":{"url":"data:image/png;base64,cG5n"}`, `p.png: 3 bytes`, `"text":"and?"`}},
	} {
		if _, err := tt.model.Respond(t.Context(), req, nil); err == nil {
			t.Error("no error")
		}
		for _, want := range tt.want {
			if !strings.Contains(body, want) {
				t.Errorf("%T: %s lacks %s", tt.model, body, want)
			}
		}
	}
}

// camera is a tool whose every result has a picture.
func camera(t *testing.T) Tool {
	i, err := NewImage("image/png", picture(t, 2, 2))
	if err != nil {
		t.Fatal(err)
	}
	return Tool{Spec: Spec{Name: "look"}, ReadOnly: true, Call: func(context.Context, string, json.RawMessage, func(Progress)) (Result, error) {
		return Result{Text: "seen", Images: []Image{i}}, nil
	}}
}

// A viewer is a model that counts the images that it is shown, and refuses some.
type viewer struct {
	script
	refuses func(n int) error
	shown   []int
}

func (v *viewer) Respond(ctx context.Context, req Request, show func(Delta)) (Response, error) {
	n, _ := countImages(req.Messages)
	v.shown = append(v.shown, n)
	if v.refuses != nil && n > 0 {
		if err := v.refuses(n); err != nil {
			return Response{}, err
		}
	}
	return v.script.Respond(ctx, req, show)
}

// A conversation has a bounded number of images: older ones give way, many at once.
func TestManyImages(t *testing.T) {
	m := &viewer{}
	for i := range 30 {
		m.turns = append(m.turns, []Block{use(fmt.Sprint("t", i), "look", fmt.Sprintf(`{"path":"%d"}`, i))})
	}
	m.turns = append(m.turns, []Block{Text("Done.")})
	log := &memory{}
	cfg := Config{ID: "r", Model: m, Log: log, Tools: []Tool{camera(t)}}
	if out, err := New(cfg).Turn(t.Context(), "look"); err != nil || out.Subtype != Success {
		t.Fatalf("got %+v, %v", out, err)
	}
	if got := fmt.Sprint(m.shown[19:23], m.shown[30]); got != "[19 20 10 11] 19" {
		t.Errorf("shown %v", m.shown)
	}
	r, err := Resume(cfg, log.all())
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := countImages(r.messages); n != 19 {
		t.Errorf("resumed with %d", n)
	}
}

// A model that takes no images, or not one of them, goes on without.
func TestRefusedImages(t *testing.T) {
	for _, err := range []error{
		&ProviderError{Status: 400, Message: "image_url is not supported"},
		&ProviderError{Status: 500, Message: "image input is not supported"},
		&ProviderError{Status: 200, Kind: "invalid_request_error"},
	} {
		m := &viewer{refuses: func(int) error { return err }}
		for i := range 4 {
			m.turns = append(m.turns, []Block{use(fmt.Sprint("t", i), "look", fmt.Sprintf(`{"path":"%d"}`, i))})
		}
		m.turns = append(m.turns, []Block{Text("Done.")})
		log := &memory{}
		r := New(Config{ID: "r", Model: m, Log: log, Tools: []Tool{camera(t)}})
		if out, err := r.Turn(t.Context(), "look"); err != nil || out.Subtype != Success {
			t.Fatalf("got %+v, %v", out, err)
		}
		if n := strings.Count(log.kinds(), "system/"+SubtypeBlind); n != maxBlind || fmt.Sprint(m.shown) != "[0 1 0 1 0 0 0]" {
			t.Errorf("%v: refused %d times, shown %v", err, n, m.shown)
		}
		if !strings.Contains(r.messages[len(r.messages)-2].Content[0].Result, cannotSee) {
			t.Error("the model is not told that there was one")
		}
	}
	// What has nothing to do with them still ends the turn.
	m := &viewer{refuses: func(int) error { return &ProviderError{Status: 401} }}
	m.turns = []any{[]Block{use("t", "look", `{}`)}}
	if out, _ := New(Config{ID: "r", Model: m, Log: &memory{}, Tools: []Tool{camera(t)}}).Turn(t.Context(), "look"); out.Subtype != Failed {
		t.Errorf("got %+v", out)
	}
}
