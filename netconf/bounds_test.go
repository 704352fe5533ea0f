package netconf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// nested returns JSON of so many levels.
func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// withoutPlace returns err, an *Error or nil, without the file and the network.
func withoutPlace(err error) error {
	var e *netconf.Error
	if !errors.As(err, &e) {
		return err
	}
	e.File, e.Network = "", ""
	return e
}

func TestDeeplyNestedInputIsRefused(t *testing.T) {
	t.Parallel()
	const list, lone = `{"name":"n","plugins":[{"type":"a","x":%s}]}`, `{"name":"n","type":"a","x":%s}`
	for name, read := range map[string]struct {
		levels int // of text around the value
		text   string
		read   func(text string) error
	}{
		"Parse of a list": {3, list, func(text string) error { _, err := netconf.Parse([]byte(text)); return err }},
		"Parse":           {1, lone, func(text string) error { _, err := netconf.Parse([]byte(text)); return err }},
		"ParsePlugin":     {1, lone, func(text string) error { _, err := netconf.ParsePlugin([]byte(text)); return err }},
		"LoadFileFS": {1, lone, func(text string) error {
			_, err := netconf.LoadFileFS(fstest.MapFS{"n.conf": {Data: []byte(text)}}, "n.conf")
			return withoutPlace(err)
		}},
		"LoadChain": {1, `{"type":"a","x":%s}`, func(text string) error {
			_, err := netconf.LoadChain(fstest.MapFS{"n/a.conf": {Data: []byte(text)}}, "n")
			return withoutPlace(err)
		}},
		"Decode": {1, `{"delegates":%s}`, func(text string) error {
			_, err := netconf.Decode[map[string]json.RawMessage]([]byte(text))
			return err
		}},
		"ParseSelection": {3, `[{"name":"n","cni-args":{"x":%s}}]`, func(text string) error { _, err := netconf.ParseSelection(text); return err }},
		"Selection":      {2, `{"name":"n","cni-args":{"x":%s}}`, func(text string) error { return new(netconf.Selection).UnmarshalJSON([]byte(text)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := read.read(fmt.Sprintf(read.text, nested(bounds.Depth-read.levels))); err != nil {
				t.Errorf("%d levels: %v", bounds.Depth, err)
			}
			for _, levels := range []int{bounds.Depth + 1, 9_999, 100_000} {
				err := read.read(fmt.Sprintf(read.text, nested(levels-read.levels)))
				wantError{kind: netconf.ErrInvalid, code: 7, text: "1000 levels"}.check(t, err)
			}
		})
	}
}

// What Parse accepts can be completed, recorded and read back.
func TestNetworkOfTheGreatestDepthCanBeReadBack(t *testing.T) {
	t.Parallel()
	s, err := netconf.ParseSelection(`[{"name":"n","cni-args":{"x":` + nested(bounds.Depth-3) + `}}]`)
	nodetest.OK(t, err)
	for _, text := range []string{`{"type":"a","x":` + nested(bounds.Depth-1) + `}`, `{"plugins":[{"type":"a"}],"x":` + nested(bounds.Depth-1) + `}`} {
		n, err := netconf.Parse([]byte(text))
		if err == nil {
			n, err = n.EditPlugins(s[0].Edits()...)
		}
		if err == nil {
			n, err = n.Edit(netconf.Default("name", "n"))
		}
		nodetest.OK(t, err)
		recorded, _ := n.MarshalJSON()
		var back netconf.Network
		if err := json.Unmarshal(recorded, &back); err != nil || !back.Equal(n) {
			t.Errorf("read back with %v", err)
		}
	}
}

func TestLargeNetworkIsRefused(t *testing.T) {
	t.Parallel()
	large := `{"name":"n","type":"a","x":"` + strings.Repeat("x", bounds.Network) + `"}`
	_, err := netconf.Parse([]byte(large))
	want := wantError{kind: netconf.ErrInvalid, code: 7, text: "larger than 1 MiB"}
	want.check(t, err)
	_, err = netconf.Load(fstest.MapFS{"n.conf": {Data: []byte(large)}}, "n")
	if err == nil || !strings.Contains(err.Error(), want.text) {
		t.Errorf("Load: %v", err)
	}

	n, err := netconf.Parse([]byte(`{"name":"n","type":"a"}`))
	if err == nil {
		n, err = n.EditPlugins(netconf.Set("x", strings.Repeat("x", bounds.Network)))
	}
	nodetest.OK(t, err)
	want.network = "n"
	want.check(t, n.CheckRequest(netconf.Request{}))
	if text, _ := n.MarshalJSON(); n.Size() < len(text) || n.Size() > len(text)+100 {
		t.Errorf("Size %d of %d bytes", n.Size(), len(text))
	}
}

func TestTooManySelectionsAreRefused(t *testing.T) {
	t.Parallel()
	list := func(n int) string { return strings.TrimSuffix(strings.Repeat("a,", n), ",") }
	array := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`{"name":"a"},`, n), ",") + "]" }
	for _, annotation := range []func(int) string{list, array} {
		if got, err := netconf.ParseSelection(annotation(64)); len(got) != 64 || err != nil {
			t.Errorf("64 selections: %d, %v", len(got), err)
		}
		_, err := netconf.ParseSelection(annotation(65))
		wantError{kind: netconf.ErrInvalid, code: 7, text: "65 networks are selected, at most 64 are allowed"}.check(t, err)
		if got, err := netconf.ParseSelectionN(annotation(1024), 1024); len(got) != 1024 || err != nil {
			t.Errorf("1024 selections: %d, %v", len(got), err)
		}
		_, err = netconf.ParseSelectionN(annotation(2), 1)
		wantError{kind: netconf.ErrInvalid, code: 7, text: "2 networks are selected, at most 1 are allowed"}.check(t, err)
	}
}

func TestTooLongAnAnnotationIsRefused(t *testing.T) {
	t.Parallel()
	for _, annotation := range []string{
		`[{"name":"a","cni-args":{"x":"` + strings.Repeat("x", 256<<10) + `"}}]`,
		"a" + strings.Repeat(" ", 256<<10),
		strings.Repeat(" ", 256<<10+1),
	} {
		_, err := netconf.ParseSelection(annotation)
		wantError{kind: netconf.ErrInvalid, code: 7, text: "larger than 256 KiB"}.check(t, err)
	}
	if got, err := netconf.ParseSelection("a" + strings.Repeat(" ", 256<<10-1)); len(got) != 1 || err != nil {
		t.Errorf("256 KiB: %d, %v", len(got), err)
	}
}
