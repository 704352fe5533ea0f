package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// errDiffers is returned when a pod has another network-status in the API than in the
// records. The difference has been printed.
var errDiffers = errors.New("the network-status of the pod differs")

// diff compares the network-status of a container with what the API has. It asks the daemon
// whose socket is in socketDir.
func (t *tool) diff(ctx context.Context, container, socketDir string) error {
	recorded, pod, err := t.annotation(ctx, container)
	if err != nil {
		return err
	}
	if !pod.Valid() {
		return fmt.Errorf("container %q was not attached for a pod", container)
	}
	current, err := askDaemon(socketDir, pod)
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod, err)
	}
	pairs := compare(entries(recorded), entries(current))
	if err := t.printPairs(pairs); err != nil {
		return err
	}
	if slices.ContainsFunc(pairs, func(p pairView) bool { return p.Difference != "" }) {
		return errDiffers
	}
	return nil
}

// A pairView is an entry of the network-status in the records, and the one in the pod's
// annotation for the same interface. Programs rely on its JSON.
type pairView struct {
	Interface  string          `json:"interface"`
	Difference string          `json:"difference,omitempty"` // "missing", "unexpected", "changed" or "moved"
	Recorded   json.RawMessage `json:"recorded,omitempty"`
	Pod        json.RawMessage `json:"pod,omitempty"`
}

// entries returns the elements of the list in text. Text that is no list is one element,
// as a JSON string.
func entries(text string) (list []json.RawMessage) {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		quoted, _ := json.Marshal(text) //nolint:errchkjson // a string has JSON
		return []json.RawMessage{quoted}
	}
	return list
}

// compare pairs the entries of both lists by their interfaces.
func compare(recorded, pod []json.RawMessage) []pairView {
	var pairs []pairView
	used := make([]bool, len(pod))
	next := 0 // where the entry after the last one is expected
	for _, r := range recorded {
		p := pairView{Interface: interfaceOf(r), Recorded: r, Difference: "missing"}
		for i, entry := range pod {
			if used[i] || interfaceOf(entry) != p.Interface {
				continue
			}
			used[i], p.Pod = true, entry
			switch {
			case canonical(r) != canonical(entry):
				p.Difference = "changed"
			case i < next:
				p.Difference = "moved"
			default:
				p.Difference = ""
			}
			next = i + 1
			break
		}
		pairs = append(pairs, p)
	}
	for i, entry := range pod {
		if !used[i] {
			pairs = append(pairs, pairView{Interface: interfaceOf(entry), Pod: entry, Difference: "unexpected"})
		}
	}
	return pairs
}

// interfaceOf returns the interface of an entry, or "".
func interfaceOf(entry json.RawMessage) string {
	var keys struct{ Interface string }
	_ = json.Unmarshal(entry, &keys) // an entry of another form has none
	return keys.Interface
}

// canonical returns the same line for the same JSON: its keys are sorted.
func canonical(entry json.RawMessage) string {
	var value any
	if json.Unmarshal(entry, &value) != nil {
		return string(entry)
	}
	text, _ := json.Marshal(value) //nolint:errchkjson // it was JSON
	return string(text)
}

// printPairs prints the entries of both sides below each other where they differ.
func (t *tool) printPairs(pairs []pairView) error {
	if t.form == "json" {
		return t.print(append([]pairView{}, pairs...), "", nil)
	}
	var text strings.Builder
	for _, p := range pairs {
		name := cmp.Or(p.Interface, "(no interface)")
		switch p.Difference {
		case "":
			fmt.Fprintf(&text, "%s: equal\n", name)
			continue
		case "missing":
			fmt.Fprintf(&text, "%s: the pod has no such entry\n", name)
		case "unexpected":
			fmt.Fprintf(&text, "%s: only the pod has this entry\n", name)
		case "changed":
			fmt.Fprintf(&text, "%s: the entries differ\n", name)
		case "moved":
			fmt.Fprintf(&text, "%s: the pod has this entry before the one above\n", name)
		}
		for _, side := range []struct {
			name  string
			entry json.RawMessage
		}{{"recorded", p.Recorded}, {"pod", p.Pod}} {
			if side.entry != nil {
				fmt.Fprintf(&text, "  %-8s  %s\n", side.name, canonical(side.entry))
			}
		}
	}
	if len(pairs) == 0 {
		text.WriteString("nothing is recorded, and the pod has no entries\n")
	}
	_, err := io.WriteString(t.out, text.String())
	return err
}
