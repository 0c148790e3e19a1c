package tool

import (
	"maps"
	"slices"
	"strings"
)

// fileTypes are the names that files of a language have.
var fileTypes = map[string][]string{
	"asm":        {"*.asm", "*.s", "*.S"},
	"c":          {"*.c", "*.h"},
	"cpp":        {"*.cc", "*.cpp", "*.cxx", "*.h", "*.hh", "*.hpp", "*.hxx"},
	"cs":         {"*.cs"},
	"css":        {"*.css", "*.scss", "*.sass", "*.less"},
	"dart":       {"*.dart"},
	"docker":     {"Dockerfile*", "*.dockerfile"},
	"elixir":     {"*.ex", "*.exs"},
	"go":         {"*.go"},
	"haskell":    {"*.hs"},
	"html":       {"*.html", "*.htm"},
	"java":       {"*.java"},
	"js":         {"*.js", "*.jsx", "*.mjs", "*.cjs"},
	"json":       {"*.json"},
	"kotlin":     {"*.kt", "*.kts"},
	"lua":        {"*.lua"},
	"make":       {"Makefile", "makefile", "GNUmakefile", "*.mk"},
	"md":         {"*.md", "*.markdown"},
	"perl":       {"*.pl", "*.pm"},
	"php":        {"*.php"},
	"proto":      {"*.proto"},
	"py":         {"*.py", "*.pyi"},
	"ruby":       {"*.rb", "Gemfile", "Rakefile"},
	"rust":       {"*.rs"},
	"scala":      {"*.scala"},
	"sh":         {"*.sh", "*.bash", "*.zsh"},
	"sql":        {"*.sql"},
	"swift":      {"*.swift"},
	"tf":         {"*.tf", "*.tfvars"},
	"toml":       {"*.toml"},
	"ts":         {"*.ts", "*.tsx", "*.mts", "*.cts"},
	"txt":        {"*.txt"},
	"vue":        {"*.vue"},
	"xml":        {"*.xml"},
	"yaml":       {"*.yaml", "*.yml"},
	"zig":        {"*.zig"},
	"javascript": {"*.js", "*.jsx", "*.mjs", "*.cjs"},
	"python":     {"*.py", "*.pyi"},
	"typescript": {"*.ts", "*.tsx", "*.mts", "*.cts"},
	"markdown":   {"*.md", "*.markdown"},
}

func typeList() string { return strings.Join(slices.Sorted(maps.Keys(fileTypes)), ", ") }
