package gateway

import (
	"regexp"
	"strings"
)

// A planEntry is a step of a plan, as the Agent Client Protocol has it.
type planEntry struct {
	Content  string `json:"content"`
	Priority string `json:"priority"`
	Status   string `json:"status"`
}

// A task is an item of a task list in Markdown. What is between its brackets says how far
// it is.
var task = regexp.MustCompile(`^\s{0,8}(?:[-*+]|\d{1,3}[.)])\s+\[([ xX~>/-])\]\s+(\S.*)$`)

// maxPlan bounds the entries of a plan.
const maxPlan = 100

// planIn is the plan that a model gives in what it says: a task list in Markdown of two
// items or more, outside of code. nil if there is none.
func planIn(text string) []planEntry {
	if !strings.Contains(text, "] ") {
		return nil
	}
	var plan []planEntry
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimLeft(line, " ")
		if mark := trimmed[:min(3, len(trimmed))]; mark == "```" || mark == "~~~" {
			switch fence {
			case "":
				fence = mark
			case mark:
				fence = ""
			}
			continue
		}
		m := task.FindStringSubmatch(line)
		if fence != "" || m == nil || len(plan) == maxPlan {
			continue
		}
		status := "in_progress"
		switch m[1] {
		case " ":
			status = "pending"
		case "x", "X":
			status = "completed"
		}
		plan = append(plan, planEntry{Content: strings.TrimRight(m[2], " \t"), Priority: "medium", Status: status})
	}
	if len(plan) < 2 {
		return nil
	}
	return plan
}
