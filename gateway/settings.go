package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"sandgate/sandbox"
)

// SettingsFile is the name of the file of settings in the state folder.
const SettingsFile = "sandgate.toml"

// Settings are what a file of settings holds. Those above the blank line are flags
// of the command serve, under the same names; what is empty was not set.
type Settings struct {
	State     string   `toml:"state"`
	Listen    string   `toml:"listen"`
	HTTP      string   `toml:"http"`
	AdminKeys string   `toml:"admin-keys"`
	VaultKey  string   `toml:"vault-key"`
	Domain    string   `toml:"domain"`
	UserCA    string   `toml:"user-ca"`
	Banner    string   `toml:"banner"`
	ProxyFrom []string `toml:"proxy-from"`
	Exempt    []string `toml:"exempt"`
	Places    *int     `toml:"places"`
	Each      *int     `toml:"places-each"`
	Grace     string   `toml:"login-grace"`
	UserConns *int     `toml:"user-connections"`
	Driver    string   `toml:"driver"`
	Docker    string   `toml:"docker-host"`
	Cert      string   `toml:"docker-cert"`
	Copy      *bool    `toml:"docker-copy"`
	Model     string   `toml:"model"`
	Anthropic string   `toml:"anthropic-url"`
	OpenAI    string   `toml:"openai-url"`
	MaxExec   string   `toml:"max-exec"`
	NoCreate  *bool    `toml:"no-create"`
	Drain     string   `toml:"drain"`
	LogFormat string   `toml:"log-format"`
	LogLevel  string   `toml:"log-level"`
	Verbose   *bool    `toml:"verbose"`

	Workspaces []string                `toml:"workspaces"`
	Images     []string                `toml:"images"`
	MaxImage   sandbox.Size            `toml:"max-image"` // bytes of one image, unpacked
	Defaults   templateKeys            `toml:"defaults"`
	Ceilings   ceilingKeys             `toml:"ceilings"`
	Templates  map[string]templateKeys `toml:"templates"`
}

// templateKeys are those of a template, and of the defaults.
type templateKeys struct {
	Image   string `toml:"image"`
	Driver  string `toml:"driver"`
	Runtime string `toml:"runtime"`
	SpecFlags
}

type ceilingKeys struct {
	CPUs    float64          `toml:"cpus"`
	Memory  sandbox.Size     `toml:"memory"`
	PIDs    int64            `toml:"pids"`
	Disk    sandbox.Size     `toml:"disk"`
	TTL     sandbox.Duration `toml:"ttl"`
	Network sandbox.Network  `toml:"network"`
}

// maxSettings bounds a file of settings.
const maxSettings = 1 << 20

// ReadSettings reads a file of settings. Paths in it are taken from where the file
// is. Without a file it is os.ErrNotExist; the error of one that is wrong names
// the line.
func ReadSettings(file string) (Settings, error) {
	f, err := os.Open(file)
	if err != nil {
		return Settings{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return Settings{}, err
	}
	if len(text) > maxSettings {
		return Settings{}, fmt.Errorf("%s: more than %d bytes", file, maxSettings)
	}
	s, err := parseSettings(text)
	if err != nil {
		return Settings{}, fmt.Errorf("%s:%w", file, err)
	}
	for _, path := range []*string{&s.State, &s.AdminKeys, &s.VaultKey, &s.UserCA, &s.Banner, &s.Cert} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	return s, nil
}

// parseSettings reads settings. Its errors begin with the number of the line.
func parseSettings(text []byte) (Settings, error) {
	var s Settings
	err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&s)
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		e := unknown.Errors[0]
		line, _ := e.Position()
		return s, fmt.Errorf("%d: %s", line, unknownKey(e.Key()))
	}
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := wrong.Position()
		return s, fmt.Errorf("%d: %s", line, strings.TrimPrefix(wrong.Error(), "toml: "))
	}
	if err != nil {
		return s, fmt.Errorf(" %w", err)
	}
	return s, nil
}

// unknownKey says that there is no such key, and which one may have been meant.
func unknownKey(key toml.Key) string {
	says := fmt.Sprintf("unknown key %q", strings.Join(key, "."))
	near, distance := "", 4
	for _, k := range knownKeys(reflect.TypeFor[Settings](), key[:len(key)-1]) {
		if d := editDistance(k, key[len(key)-1]); d < distance && d < len(k) {
			near, distance = k, d
		}
	}
	if near != "" {
		says += fmt.Sprintf("; did you mean %q?", strings.Join(append(key[:len(key)-1:len(key)-1], near), "."))
	}
	return says
}

// knownKeys returns the keys in the table at path below t.
func knownKeys(t reflect.Type, path []string) []string {
	if t.Kind() == reflect.Map {
		if len(path) == 0 {
			return nil
		}
		return knownKeys(t.Elem(), path[1:])
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var keys []string
	for _, f := range reflect.VisibleFields(t) {
		name := f.Tag.Get("toml")
		switch {
		case name == "":
		case len(path) == 0:
			keys = append(keys, name)
		case path[0] == name:
			return knownKeys(f.Type, path[1:])
		}
	}
	return keys
}

// editDistance is how many characters have to be put in, taken away or changed to
// make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Sandboxes returns what the settings say about sandboxes, over what there is
// without them.
func (s Settings) Sandboxes(base sandbox.Config) (sandbox.Config, error) {
	c := base
	var err error
	if c.Defaults, err = s.Defaults.over(base.Defaults); err != nil {
		return c, fmt.Errorf("defaults: %w", err)
	}
	c.Templates = make(map[string]sandbox.Options, len(s.Templates))
	for name, keys := range s.Templates {
		if c.Templates[name], err = keys.over(sandbox.Options{}); err != nil {
			return c, fmt.Errorf("template %q: %w", name, err)
		}
	}
	c.Ceilings = sandbox.Ceilings{
		Limits: sandbox.Limits{
			CPUs: s.Ceilings.CPUs, Memory: int64(s.Ceilings.Memory), PIDs: s.Ceilings.PIDs, Disk: int64(s.Ceilings.Disk),
		},
		TTL:     s.Ceilings.TTL,
		Network: s.Ceilings.Network,
	}
	c.Workspaces, c.Images = s.Workspaces, s.Images
	return c, nil
}

// over returns what the keys say, over base.
func (k templateKeys) over(base sandbox.Options) (sandbox.Options, error) {
	o, err := k.options()
	o.Image, o.Driver, o.Runtime = k.Image, k.Driver, k.Runtime
	return o.Or(base), err
}
