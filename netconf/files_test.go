package netconf_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// found lists what Files finds, up to the file called last: "FILE NETWORK", or
// "FILE !" and the key that is wrong.
func found(fsys fs.FS, consider func(fs.DirEntry) bool, last string) []string {
	var all []string
	for f, err := range netconf.Files(fsys, consider) {
		s := f.Name + " " + f.Network.Name()
		if e := (*netconf.Error)(nil); errors.As(err, &e) {
			s += "!" + e.Key
			if f.Network.Name() != "" || e.File == "" {
				s += " with a network, or without a file"
			}
		}
		all = append(all, s)
		if f.Name == last {
			break
		}
	}
	return all
}

func TestFilesAreThoseOfRuntimesInTheirOrder(t *testing.T) {
	t.Parallel()
	fsys := files(confDir)
	want := []string{"05-bad.conf !", "06-bad.conflist !plugins", "07-sub.conflist !type", "10-red.conf red"}
	nodetest.Equal(t, "got", found(fsys, nil, "10-red.conf"), want)
	const good = `{"name":"x","type":"a"}`
	fsys = files(map[string]string{
		"10-a.yaml": good, "10-b.CONF": good, "10-c": good, "10-d.conf_bak": good, "10-e.tmp-x.conf": good, "10-f.conf/x": "",
		"20-a.json": good, ".a.conf": good, "Z.conflist": `{"name":"z"}`, "z/1.conf": `{"type":"a"}`,
	})
	nodetest.Equal(t, "got", found(fsys, nil, ""), []string{".a.conf x", "20-a.json x", "Z.conflist z"})
	considered := func(entry fs.DirEntry) bool { return strings.HasPrefix(entry.Name(), "10-") }
	want = []string{"10-a.yaml x", "10-b.CONF x", "10-c x", "10-d.conf_bak x", "10-e.tmp-x.conf x", "10-f.conf !"}
	nodetest.Equal(t, "got", found(fsys, considered, ""), want)
}

// What Files yields without an error can be run by a runtime.
func TestFilesThatNoRuntimeCanRunAreErrors(t *testing.T) {
	t.Parallel()
	for text, key := range map[string]string{
		`{"type":"a"}`:                                             "name",
		`{"name":"x","plugins":[]}`:                                "plugins",
		`{"name":"x","plugins":[{}]}`:                              "plugins[0].type",
		`{"name":"x","type":"../a"}`:                               "plugins[0].type",
		`{"name":"x","type":".."}`:                                 "plugins[0].type",
		`{"name":"x","plugins":[{"type":"a"},{"type":"b\u0000"}]}`: "plugins[1].type",
		`{"cniVersion":"x","name":"x","type":"a"}`:                 "cniVersion",
		`{"cniVersion":"0","name":"x","type":"a"}`:                 "cniVersion",
		`{"name":"x","Type":"a","plugins":[{"type":"a"}]}`:         "",
		`{"name":"x","type":"a","mtu":1e99999}`:                    "plugins[0].mtu",
		`{"name":"x","type":"a","name":"y"}`:                       "name",
		strings.Repeat(" ", 16<<20) + `{"name":"x"}`:               "",
	} {
		got := found(files(map[string]string{"1.conf": text}), nil, "")
		nodetest.Equal(t, fmt.Sprintf("%.50q", text), got, []string{"1.conf !" + key})
	}
	for _, text := range []string{`{"name":"x","type":"a"}`, `{"cniVersion":"9.9.9","name":"x","plugins":[{"type":"a"}]}`} {
		nodetest.Equal(t, text, found(files(map[string]string{"1.conf": text}), nil, ""), []string{"1.conf x"})
	}
}

func TestFilesOfADirectoryThatCannotBeListed(t *testing.T) {
	t.Parallel()
	for name, fsys := range map[string]fs.FS{"none": nil, "absent": subdirectory(t, "absent")} {
		n := 0
		for f, err := range netconf.Files(fsys, nil) {
			if n++; err == nil || f.Name != "" {
				t.Errorf("%s: %+v, %v", name, f, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d results", name, n)
		}
	}
}

func subdirectory(t *testing.T, dir string) fs.FS {
	t.Helper()
	fsys, err := fs.Sub(fstest.MapFS{}, dir)
	nodetest.OK(t, err)
	return fsys
}
