package nad_test

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nadfile"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// mirrored returns the files of d.
func mirrored(d nad.Definition) []nadfile.File {
	return nadfile.Files(d.Namespace, d.Name, d.Config, nadfile.Key{UID: d.UID, Version: d.Version, Resource: d.Resource})
}

// write writes files of d, the first n of them or all, as a writer of mirrors does.
func write(t *testing.T, fsys fstest.MapFS, d nad.Definition, n int) {
	t.Helper()
	written := mirrored(d)
	for _, f := range written[:min(n, len(written))] {
		if delete(fsys, f.Name); f.Data != nil {
			fsys[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
}

const all = 99 // files

var (
	plugin = nad.Definition{Ref: blue, UID: "u-1", Version: "1", Resource: "intel.com/vf", Config: "{ \"type\": \"x\",\n \"vni\": 12345678901234567890 }\n"}
	chain  = nad.Definition{Ref: blue, UID: "u-1", Version: "2", Config: `{"plugins":[{"type":"y","s":"<&>"}]}`}
)

func TestMirrorHasEachDefinitionAsItWas(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]nad.Definition{
		"a lone plugin":       plugin,
		"a list":              chain,
		"without Config":      {Ref: blue, UID: "u", Version: "3"},
		"Config that is none": {Ref: blue, UID: "u", Version: "3", Config: "{\xff"},
		"the longest name":    {Ref: nad.Ref{Namespace: "ns", Name: strings.Repeat("a", 246)}, Version: "4", Config: "{}"},
		"nothing is known":    {Ref: blue, Config: "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := fstest.MapFS{}
			write(t, fsys, d, all)
			got, err := nad.Load(fsys, d.Ref)
			if diff := cmp.Diff(d, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			ext := ".conf"
			if name == "a list" {
				ext = ".conflist"
			}
			if f := fsys[d.Namespace+"/"+d.Name+ext]; f == nil || string(f.Data) != d.Config {
				t.Errorf("files: %q", slices.Sorted(maps.Keys(fsys)))
			}
		})
	}
}

// Wherever a writer stops, a reader gets one of the two versions, whole, or is told to
// try again.
func TestMirrorNeverMixesTwoVersions(t *testing.T) {
	t.Parallel()
	edited := plugin
	edited.Version, edited.Config = "3", `{"type":"z"}`
	empty := nad.Definition{Ref: blue}
	for name, change := range map[string][2]nad.Definition{
		"created": {empty, plugin}, "a plugin becomes a list": {plugin, chain}, "a list becomes a plugin": {chain, plugin}, "edited": {plugin, edited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := change[0], change[1]
			for n := range 4 {
				fsys := fstest.MapFS{}
				if before != empty {
					write(t, fsys, before, all)
				}
				write(t, fsys, after, n)
				got, err := nad.Load(fsys, blue)
				switch {
				case err == nil && (got == before || got == after):
				case before == empty && errors.Is(err, netconf.ErrNotFound):
				default:
					wantError{code: 11, ref: "ns/blue", text: "do not belong together"}.check(t, err)
				}
				if n == 3 && got != after {
					t.Errorf("in the end: %+v, %v", got, err)
				}
			}
		})
	}
	// Removed in the opposite order.
	fsys := fstest.MapFS{}
	write(t, fsys, plugin, all)
	delete(fsys, "ns/blue.conf")
	_, err := nad.Load(fsys, blue)
	wantError{kind: netconf.ErrNotFound, ref: "ns/blue"}.check(t, err)
}

func TestMirrorTakesWhatAPersonWrote(t *testing.T) {
	t.Parallel()
	fsys := files(map[string]string{"ns/blue.conflist": `{"plugins":[{"type":"x"}]}`, "ns/red.conf": `{"type":"y"}`, "ns/green.conf": "{}", "ns/green.conflist": "{}"})
	for name, want := range map[string]string{"blue": "x", "red": "y"} {
		d, err := nad.Load(fsys, nad.Ref{Namespace: "ns", Name: name})
		if err != nil || d.UID+d.Version+d.Resource != "" {
			t.Fatalf("%+v, %v", d, err)
		}
		if n, err := d.Network(nad.Rules{}); err != nil || n.Name() != name || n.Plugins()[0].Type() != want {
			t.Errorf("%v, %v", n, err)
		}
	}
	_, err := nad.Load(fsys, nad.Ref{Namespace: "ns", Name: "green"})
	wantError{kind: netconf.ErrInvalid, ref: "ns/green", text: "remove one"}.check(t, err)
}

// A definition that does not exist is an error, even if a file of the node or another
// namespace has the name. It differs from every other error, so that only it can let a
// caller look elsewhere.
func TestOnlyAMissingDefinitionIsNotFound(t *testing.T) {
	t.Parallel()
	fsys := files(map[string]string{
		"blue.conf": `{"name":"blue","type":"x"}`, "other/blue.conf": `{"type":"x"}`, "ns/red.conf": `{"name":"blue","type":"x"}`, "ns/blue/x": "",
		"ns/blue.json": "{}", "ns/blue.key": `{"configSHA256":"x"}`,
	})
	long := nad.Ref{Namespace: "ns", Name: strings.Repeat("a", 247)}
	for _, r := range []nad.Ref{blue, {Namespace: "none", Name: "blue"}, long} {
		_, err := nad.Load(fsys, r)
		wantError{kind: netconf.ErrNotFound, ref: r.String()}.check(t, err)
		nodetest.Is(t, err, fs.ErrNotExist)
	}
	if !nadfile.TooLong(long.Name) || nadfile.TooLong(long.Name[1:]) {
		t.Error("a file has a name of 255 bytes at most")
	}
	for name, tt := range map[string]struct {
		fsys fs.FS
		want wantError
	}{
		"a FIFO":               {fstest.MapFS{"ns/blue.conf": {Mode: fs.ModeNamedPipe}}, wantError{kind: netconf.ErrInvalid, text: "not a regular file"}},
		"a directory":          {files(map[string]string{"ns/blue.conf/x": ""}), wantError{kind: netconf.ErrInvalid}},
		"more than 1 MiB":      {files(map[string]string{"ns/blue.conf": strings.Repeat(" ", 1<<20+1)}), wantError{kind: netconf.ErrInvalid, text: "1 MiB"}},
		"a damaged key":        {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": "{"}), wantError{kind: netconf.ErrDecode, text: "ns/blue.key"}},
		"an empty key":         {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": ""}), wantError{kind: netconf.ErrDecode}},
		"a key of wrong types": {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": `{"uid":{}}`}), wantError{kind: netconf.ErrDecode, key: "uid"}},
		"a key of another":     {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": `{}`}), wantError{code: 11, text: "changed by hand"}},
		"not readable":         {unreadable{}, wantError{kind: fs.ErrPermission, code: 5}},
		"no file system":       {nil, wantError{kind: netconf.ErrInvalid}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := nad.Load(tt.fsys, blue)
			tt.want.ref = "ns/blue"
			tt.want.check(t, err)
			if errors.Is(err, netconf.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("as if there were none: %v", err)
			}
		})
	}
}

type unreadable struct{}

func (unreadable) Open(string) (fs.File, error) { return nil, fs.ErrPermission }
