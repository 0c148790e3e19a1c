package gateway

import (
	"errors"
	"strings"
	"testing"
)

func TestSecretName(t *testing.T) {
	for name, ok := range map[string]bool{
		"TOKEN": true, "a_1": true, "_X": true, "PATHS": true, "GIT_AUTHOR_NAME": true,
		"": false, "1A": false, "A-B": false, "A=B": false, "A B": false, "Ä": false, "A\x00": false,
		"PATH": false, "HOME": false, "ENV": false, "BASH_ENV": false, "IFS": false,
		"LD_PRELOAD": false, "LD_LIBRARY_PATH": false, "SSH_AUTH_SOCK": false, "SANDGATE_GUEST": false,
		strings.Repeat("A", 128): true, strings.Repeat("A", 129): false,
	} {
		if err := secretName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSecretValue(t *testing.T) {
	for in, want := range map[string]string{
		"v": "v", "v\n": "v", "v\r\n": "v", " v ": " v ", "a\nb\n": "a\nb\n", "a\nb": "a\nb",
		"": "", "\n": "", "a\x00b": "", "\xff\xfe": "", strings.Repeat("v", maxSecretSize+1): "",
	} {
		got, err := secretValue([]byte(in), "NAME")
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%.20q became %q, %v", in, got, err)
		}
	}
}

func TestReadHidden(t *testing.T) {
	for in, want := range map[string]string{
		"value\rrest": "value", "value\n": "value", "vx\x7falue\r": "value", "\x7f\x7fv\r": "v", "wrong\x15right\r": "right", "\r": "",
	} {
		if got, err := readHidden(strings.NewReader(in)); err != nil || string(got) != want {
			t.Errorf("%q is read as %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "value", "val\x03ue\r", "\x04"} {
		if _, err := readHidden(strings.NewReader(in)); !errors.Is(err, errNotEntered) {
			t.Errorf("%q: %v", in, err)
		}
	}
}
