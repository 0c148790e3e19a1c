package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"net/http"
	"slices"
	"strings"
)

// An Image is a picture that a tool has returned.
type Image struct {
	MIME string
	Data []byte
}

// The bounds of images: what the providers take, and of a conversation what is still
// handy. A picture counts as imageTokens.
const (
	maxImageBytes  = 3_900_000 // in base64 that is little less than 5 MiB
	maxImageSide   = 8000      // pixels
	maxImages      = 20        // of a conversation
	maxImagesBytes = 16 << 20
	imageTokens    = 1600
)

// NewImage returns a picture that models take. The error says why one is not, for the
// model: a provider would refuse the whole conversation for its sake.
func NewImage(mime string, data []byte) (Image, error) {
	var c image.Config
	var err error
	switch mime {
	case "image/png":
		c, err = png.DecodeConfig(bytes.NewReader(data))
	case "image/jpeg":
		c, err = jpeg.DecodeConfig(bytes.NewReader(data))
	case "image/gif":
		c, err = gif.DecodeConfig(bytes.NewReader(data))
	case "image/webp":
		c, err = webpConfig(data)
	default:
		err = errors.New("it is of a kind that models do not take")
	}
	switch {
	case err != nil:
		return Image{}, fmt.Errorf("the image cannot be shown: %w", err)
	case c.Width < 1 || c.Height < 1 || c.Width > maxImageSide || c.Height > maxImageSide:
		return Image{}, fmt.Errorf("the image cannot be shown: it has %dx%d pixels; make a smaller one, of at most %d each way", c.Width, c.Height, maxImageSide)
	case len(data) > maxImageBytes:
		return Image{}, fmt.Errorf("the image cannot be shown: it has %d bytes; make a smaller one, of at most %d", len(data), maxImageBytes)
	}
	return Image{MIME: mime, Data: data}, nil
}

// webpConfig reads the size of a WebP picture (RFC 9649 section 2).
func webpConfig(b []byte) (c image.Config, err error) {
	if len(b) < 30 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WEBP" {
		return c, errors.New("malformed WebP")
	}
	switch chunk := string(b[12:16]); {
	case chunk == "VP8 " && bytes.Equal(b[23:26], []byte{0x9d, 0x01, 0x2a}):
		c.Width = int(binary.LittleEndian.Uint16(b[26:]) & 0x3fff)
		c.Height = int(binary.LittleEndian.Uint16(b[28:]) & 0x3fff)
	case chunk == "VP8L" && b[20] == 0x2f:
		bits := binary.LittleEndian.Uint32(b[21:])
		c.Width, c.Height = int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1
	case chunk == "VP8X":
		c.Width = int(binary.LittleEndian.Uint32(b[23:])>>8) + 1
		c.Height = int(binary.LittleEndian.Uint32(b[26:])>>8) + 1
	default:
		return c, errors.New("malformed WebP")
	}
	return c, nil
}

// base64 is the picture as the providers' APIs have it, url as a data URL.
func (i Image) base64() string { return base64.StdEncoding.EncodeToString(i.Data) }
func (i Image) url() string    { return "data:" + i.MIME + ";base64," + i.base64() }

// A resultPart is a piece of a result that has images, in the form of Anthropic's API.
type resultPart struct {
	Type   string       `json:"type"` // text, image
	Text   string       `json:"text,omitempty"`
	Source *imageSource `json:"source,omitempty"`
}

type imageSource struct {
	Type string `json:"type"` // base64
	MIME string `json:"media_type"`
	Data []byte `json:"data"`
}

// MarshalJSON puts images into the content of a result.
func (b Block) MarshalJSON() ([]byte, error) {
	type plain Block
	if len(b.Images) == 0 {
		return json.Marshal(plain(b))
	}
	parts := []resultPart{{Type: "text", Text: b.Result}}
	for _, i := range b.Images {
		parts = append(parts, resultPart{Type: "image", Source: &imageSource{"base64", i.MIME, i.Data}})
	}
	return json.Marshal(struct {
		plain
		Content []resultPart `json:"content"`
	}{plain(b), parts})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (b *Block) UnmarshalJSON(raw []byte) error {
	type plain Block
	*b = Block{}
	v := struct {
		*plain
		Content json.RawMessage `json:"content"`
	}{plain: (*plain)(b)}
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	if len(v.Content) == 0 || v.Content[0] != '[' {
		if len(v.Content) > 0 {
			return json.Unmarshal(v.Content, &b.Result)
		}
		return nil
	}
	var parts []resultPart
	if err := json.Unmarshal(v.Content, &parts); err != nil {
		return err
	}
	var text []string
	for _, p := range parts {
		if p.Source != nil {
			b.Images = append(b.Images, Image{p.Source.MIME, p.Source.Data})
		} else {
			text = append(text, p.Text)
		}
	}
	b.Result = strings.Join(text, "\n")
	return nil
}

// WithoutImages returns a block with words in place of its images.
func (b Block) WithoutImages(why string) Block {
	for _, i := range b.Images {
		b.Result += fmt.Sprintf("\n(an image was here, %s of %d bytes: %s)", i.MIME, len(i.Data), why)
	}
	b.Images = nil
	return b
}

// boundImages puts words in place of the older images of a conversation when there are
// too many: of half of them at once, since each such change makes the provider's cache
// void. A model that does not take any is shown none.
func (r *Run) boundImages() {
	most, room := maxImages, maxImagesBytes
	n, size := countImages(r.messages)
	switch {
	case r.blind >= maxBlind:
		most, room = 0, 0
	case n <= most && size <= room:
		return
	default:
		most, room = most/2, room/2
	}
	for k := range r.messages {
		if n <= most && size <= room {
			return
		}
		had, long := countImages(r.messages[k : k+1])
		if had == 0 {
			continue
		}
		why := "it was long ago; read it again to see it"
		if r.blind >= maxBlind {
			why = cannotSee
		}
		r.messages[k] = withoutImages(r.messages[k], why)
		n, size = n-had, size-long
	}
}

const cannotSee = "this model, or its server, does not take it"

// maxBlind is how often images may be refused before no more are shown.
const maxBlind = 2

func countImages(messages []Message) (n, size int) {
	for _, m := range messages {
		for _, b := range m.Content {
			for _, i := range b.Images {
				n, size = n+1, size+len(i.Data)
			}
		}
	}
	return n, size
}

func withoutImages(m Message, why string) Message {
	m.Content = slices.Clone(m.Content)
	for i, b := range m.Content {
		m.Content[i] = b.WithoutImages(why)
	}
	return m
}

// becauseOfImages says whether a request may have been refused for the images in it.
func (e *ProviderError) becauseOfImages() bool {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden:
		return false
	}
	return !e.Overflow && (!e.temporary() || e.Status >= 500 && strings.Contains(strings.ToLower(e.Message), "image"))
}
