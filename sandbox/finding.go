package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// A Finding is one thing that a host can do for sandboxes, or cannot.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Says   string `json:"says"`             // how, or why not
	Remedy string `json:"remedy,omitempty"` // what to install or to change
}

// WriteFindings writes what was found, as a table or as a line of JSON each.
func WriteFindings(w io.Writer, found []Finding, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		for _, f := range found {
			if err := out.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range found {
		verdict := "ok"
		if !f.OK {
			verdict = "no"
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", verdict, f.Name, f.Says)
		if f.Remedy != "" {
			fmt.Fprintf(out, "\t\t-> %s\n", f.Remedy)
		}
	}
	return out.Flush()
}
