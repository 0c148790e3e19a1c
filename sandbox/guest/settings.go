package guest

import (
	"encoding/json"
	"path/filepath"
	"strings"
)

// SettingsVariable is the environment variable in which a driver gives Settings to
// the guest that it starts.
const SettingsVariable = "SANDGATE_GUEST"

// Settings are what commands in a sandbox begin with: the image's own, and on top
// of them the sandbox's. They lie open in the sandbox and in what an engine shows
// of it, so nothing in them is secret.
type Settings struct {
	Env  []string `json:"env,omitempty"`  // NAME=VALUE; a later one of the same name wins
	User string   `json:"user,omitempty"` // name or uid, and perhaps :group or :gid; empty: root
	Dir  string   `json:"dir,omitempty"`  // where commands start; empty: the user's home

	// Starved says that the sandbox has ended when it ran out of memory, and all jobs
	// with it of which an earlier guest has not told the end.
	Starved bool `json:"starved,omitempty"`
}

// Environ returns the settings as an entry of an environment.
func (s Settings) Environ() string {
	b, err := json.Marshal(s)
	if err != nil { // strings cannot fail
		panic(err)
	}
	return SettingsVariable + "=" + string(b)
}

// maxSettings bounds what a guest reads of its settings: as much as the kernel
// allows one variable to have.
const maxSettings = 128 << 10

// parseSettings reads what Environ wrote after the variable's name. What is not as
// it should be counts for nothing, as a whole: a sandbox without its settings can
// still be entered and mended.
func parseSettings(text string) Settings {
	var s Settings
	if len(text) > maxSettings || json.Unmarshal([]byte(text), &s) != nil {
		return Settings{}
	}
	for _, kv := range append([]string{s.User, s.Dir}, s.Env...) {
		if strings.Contains(kv, "\x00") {
			return Settings{}
		}
	}
	if s.Dir != "" && !filepath.IsAbs(s.Dir) {
		return Settings{}
	}
	return s
}
