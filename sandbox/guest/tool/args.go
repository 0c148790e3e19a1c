package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A parameter is a field of a tool's arguments. Its tags are:
//
//	json      its name; without omitempty it has to be given
//	jsonschema what it is for
//	enum      the values that it may have, with commas between them
//	min, max  the bounds of a number; what is beyond is brought within
type parameter struct {
	name     string
	required bool
	index    int
	enum     []string
	min, max *int64
}

func parametersOf(t reflect.Type) []parameter {
	var ps []parameter
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue // not the caller's
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := parameter{name: name, required: !strings.Contains(options, "omitempty"), index: i}
		if list := f.Tag.Get("enum"); list != "" {
			p.enum = strings.Split(list, ",")
		}
		p.min, p.max = bound(f.Tag.Get("min")), bound(f.Tag.Get("max"))
		ps = append(ps, p)
	}
	return ps
}

func bound(tag string) *int64 {
	n, err := strconv.ParseInt(tag, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// schemaLine names the arguments of a tool in one line.
func schemaLine(t reflect.Type) string {
	var words []string
	for _, p := range parametersOf(t) {
		word := p.name + " " + kindOf(t.Field(p.index).Type)
		if p.required {
			word += " (required)"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Slice:
		return "array"
	}
	return "object"
}

// decode reads arguments into v, which points to a struct that holds the defaults.
// It takes them as a model means them: "5" for 5, "true" for true, and names that
// it does not know are left out. What it made of them is told in notes.
func decode(raw json.RawMessage, v any) (notes []string, err error) {
	into := reflect.ValueOf(v).Elem()
	bad := func(format string, args ...any) error {
		e := Errorf(BadArgs, format, args...)
		e.Schema = schemaLine(into.Type())
		return e
	}
	given := make(map[string]json.RawMessage)
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, bad("the arguments are not a JSON object: %v", err)
		}
	}
	for _, p := range parametersOf(into.Type()) {
		value, ok := given[p.name]
		delete(given, p.name)
		if !ok || string(value) == "null" {
			if p.required {
				return nil, bad("%s is missing", p.name)
			}
			continue
		}
		if err := assign(into.Field(p.index), value); err != nil {
			return nil, bad("%s has to be %s: %v", p.name, article(kindOf(into.Field(p.index).Type())), err)
		}
		note, err := p.check(into.Field(p.index))
		if err != nil {
			return nil, bad("%v", err)
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	if len(given) > 0 {
		notes = append(notes, "arguments that are not known were ignored: "+shortList(slices.Sorted(maps.Keys(given))))
	}
	return notes, nil
}

func article(kind string) string {
	if strings.ContainsRune("aeiou", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

// shortList names a few of the words that a caller has sent.
func shortList(words []string) string {
	const most = 5
	var shown []string
	for _, w := range words[:min(len(words), most)] {
		shown = append(shown, cutRunes(clean([]byte(w)), 40))
	}
	if len(words) > most {
		shown = append(shown, fmt.Sprintf("and %d more", len(words)-most))
	}
	return strings.Join(shown, ", ")
}

// assign sets a field to a JSON value that means it.
func assign(field reflect.Value, value json.RawMessage) error {
	if field.Kind() == reflect.Pointer {
		p := reflect.New(field.Type().Elem())
		if err := assign(p.Elem(), value); err != nil {
			return err
		}
		field.Set(p)
		return nil
	}
	var text string
	quoted := json.Unmarshal(value, &text) == nil
	switch field.Kind() {
	case reflect.String:
		if !quoted {
			if value[0] == '{' || value[0] == '[' {
				return fmt.Errorf("it is %s", article(map[byte]string{'{': "object", '[': "array"}[value[0]]))
			}
			text = string(value)
		}
		field.SetString(text)
	case reflect.Bool:
		if !quoted {
			text = string(value)
		}
		b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(text)))
		if err != nil {
			return fmt.Errorf("%.40s is neither true nor false", value)
		}
		field.SetBool(b)
	case reflect.Int, reflect.Int64:
		if !quoted {
			text = string(value)
		}
		n, err := wholeNumber(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		field.SetInt(n)
	default:
		if quoted { // some models write JSON into a string
			value = json.RawMessage(text)
		}
		p := reflect.New(field.Type())
		if err := json.Unmarshal(value, p.Interface()); err != nil {
			return err
		}
		field.Set(p.Elem())
	}
	return nil
}

// wholeNumber reads 5, 5.0 and 5e0.
func wholeNumber(text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	const exact = 1 << 53
	if err != nil || f != float64(int64(f)) || f > exact || f < -exact {
		return 0, fmt.Errorf("%.40q is no whole number", text)
	}
	return int64(f), nil
}

// check holds a value against the tags.
func (p parameter) check(field reflect.Value) (note string, err error) {
	if field.Kind() == reflect.Pointer {
		field = field.Elem()
	}
	if p.enum != nil && !slices.Contains(p.enum, field.String()) {
		return "", fmt.Errorf("%s has to be one of %s", p.name, strings.Join(p.enum, ", "))
	}
	if field.Kind() != reflect.Int && field.Kind() != reflect.Int64 {
		return "", nil
	}
	n := field.Int()
	switch {
	case p.min != nil && n < *p.min:
		field.SetInt(*p.min)
	case p.max != nil && n > *p.max:
		field.SetInt(*p.max)
	default:
		return "", nil
	}
	return fmt.Sprintf("%s was brought from %d to %d, its limit", p.name, n, field.Int()), nil
}
