package netconf_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

func files(contents map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, content := range contents {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return fsys
}

func typesOf(n netconf.Network) string {
	var types []string
	for _, p := range n.Plugins() {
		types = append(types, p.Type())
	}
	return strings.Join(types, " ")
}

var confDir = map[string]string{
	"05-bad.conf":          `{"name":"blue","type":`,
	"06-bad.conflist":      `{"name":"blue","plugins":[]}`,
	"07-sub.conflist":      `{"name":"broken","plugins":[{"type":"list"}]}`,
	"broken/10.conf":       `{"mtu":1}`,
	"10-red.conf":          `{"name":"red","type":"macvlan"}`,
	"20-blue.json":         `{"name":"blue","type":"json"}`,
	"30-blue.conflist":     `{"name":"blue","plugins":[{"type":"second"}]}`,
	"40-chain.conflist":    `{"name":"chain","plugins":[{"type":"first"}]}`,
	"chain/20-b.conf":      `{"type":"third"}`,
	"chain/10-a.conf":      `{"type":"second"}`,
	"chain/30-c.json":      `not read`,
	"chain/sub.conf/x":     `not read`,
	"41-only.conflist":     `{"name":"only","cniVersion":"1.1.0"}`,
	"only/a.conf":          `{"type":"alone"}`,
	"42-inlined.conflist":  `{"name":"inlined","loadOnlyInlinedPlugins":"true","plugins":[{"type":"x"}]}`,
	"inlined/a.conf":       `{"type":"not read"}`,
	"43-lone.conf":         `{"name":"lone","type":"x"}`,
	"lone/a.conf":          `{"type":"not read"}`,
	"44-none.conflist":     `{"name":"none"}`,
	"50-dir.conf/x":        `not read`,
	"60-red.conf.bak":      `not read`,
	"70-no-extension":      `not read`,
	"80-plugins-bad.conf":  `{"name":"purple","plugins":[{"type":7}]}`,
	"81-plugins-good.conf": `{"name":"purple","type":"good"}`,
	"deep/er/10.conf":      `{"name":"deeper","type":"not read"}`,
}

func TestLoad(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"red":     "macvlan",
		"blue":    "second", // the broken ones hide nothing, the first good list counts
		"chain":   "first second third",
		"only":    "alone",
		"inlined": "x",
		"lone":    "x",
		"purple":  "good",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := netconf.Load(files(confDir), name)
			nodetest.OK(t, err)
			if n.Name() != name || typesOf(n) != want {
				t.Errorf("loaded %q of %q, want %q", n.Name(), typesOf(n), want)
			}
		})
	}
}

// A chain is a list that consists of the files of its directory.
func TestLoadChain(t *testing.T) {
	t.Parallel()
	n, err := netconf.LoadChain(files(confDir), "chain")
	nodetest.OK(t, err)
	if text, _ := n.MarshalJSON(); n.Name() != "chain" || strings.Contains(string(text), "cniVersion") || typesOf(n) != "second third" {
		t.Errorf("loaded %s", text)
	}
	for name, want := range map[string]wantError{
		"broken":   {kind: netconf.ErrInvalid, network: "broken", key: "type", file: "broken/10.conf"},
		"absent":   {kind: netconf.ErrNotFound, network: "absent"},
		"43-lone":  {kind: netconf.ErrNotFound, network: "43-lone"},
		"../chain": {kind: netconf.ErrInvalid, network: "../chain", key: "name"},
		"":         {kind: netconf.ErrInvalid, key: "name"},
	} {
		_, err := netconf.LoadChain(files(confDir), name)
		want.check(t, err)
	}
	_, err = netconf.LoadChain(files(map[string]string{"x/1.conf": "{"}), "x")
	wantError{kind: netconf.ErrDecode, network: "x", file: "x/1.conf"}.check(t, err)
}

func TestLoadNotFound(t *testing.T) {
	t.Parallel()
	_, err := netconf.Load(files(confDir), "green")
	wantError{kind: netconf.ErrNotFound, network: "green"}.check(t, err)
	if !errors.Is(err, netconf.ErrDecode) || !errors.Is(err, netconf.ErrInvalid) {
		t.Errorf("%v does not join what was wrong", err)
	}
	// The first of the bad files stands for all.
	const want = `no such network: network "green": 3 bad files, the first: invalid configuration: file "06-bad.conflist", network "blue", key "plugins": `
	if text := err.Error(); !strings.HasPrefix(text, want) || strings.Contains(text, "05-bad") {
		t.Errorf("%q, want %q", text, want)
	}

	_, err = netconf.Load(files(confDir), "broken")
	wantError{kind: netconf.ErrNotFound, network: "broken", text: `file "broken/10.conf", network "broken", key "type"`}.check(t, err)
	_, err = netconf.Load(files(confDir), "none")
	wantError{kind: netconf.ErrNotFound, network: "none", text: `file "44-none.conflist", network "none", key "plugins"`}.check(t, err)

	for name, want := range map[string]string{
		"other":   `no such network: network "other": file "other.conf" defines network "another": use this name; 1 bad file: cannot decode configuration: file "05-torn.conf": line 1, column 8: `,
		"another": ``,
		"nobody":  `no such network: network "nobody": 1 bad file: cannot decode`,
		"torn":    `no such network: network "torn": cannot decode configuration: file "torn.conf"`,
	} {
		dir := map[string]string{"05-torn.conf": `{"name":`, "other.conf": `{"name":"another","type":"x"}`}
		if name == "torn" {
			dir["torn.conf"] = `{"name":`
		}
		_, err := netconf.Load(files(dir), name)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}

	_, err = netconf.Load(fstest.MapFS{}, "blue")
	wantError{kind: netconf.ErrNotFound, network: "blue"}.check(t, err)
	nodetest.Equal(t, "error", err.Error(), `no such network: network "blue"`)
	_, err = netconf.Load(os.DirFS(filepath.Join(t.TempDir(), "absent")), "blue")
	wantError{kind: netconf.ErrNotFound, network: "blue"}.check(t, err)
	nodetest.Is(t, err, fs.ErrNotExist)
	_, err = netconf.Load(nil, "blue")
	wantError{kind: netconf.ErrInvalid, network: "blue"}.check(t, err)
}

// counting is a file system that counts how often each of its files is opened.
type counting struct {
	fstest.MapFS

	opened map[string]int
}

func (f counting) Open(name string) (fs.File, error) {
	f.opened[name]++
	return f.MapFS.Open(name)
}

func TestADirReadsEachFileOnceHoweverManyNetworksAreLoaded(t *testing.T) {
	t.Parallel()
	all, want := map[string]string{}, map[string]int{}
	for i := range 30 {
		file := fmt.Sprintf("%02d.conf", i)
		all[file], want[file] = fmt.Sprintf(`{"name":"n%d","type":"t%d"}`, i, i), 1
	}
	all["00-bad.conf"], want["00-bad.conf"] = "{", 1
	dir := &netconf.Dir{FS: counting{files(all), map[string]int{}}}
	if n, err := netconf.Load(dir, "n0"); err != nil || typesOf(n) != "t0" {
		t.Errorf("n0: %v, %v", n, err)
	}
	nodetest.Equal(t, "opened for the first network", dir.FS.(counting).opened, map[string]int{"00-bad.conf": 1, "00.conf": 1})
	var each sync.WaitGroup
	for i := range 30 {
		each.Go(func() {
			if n, err := netconf.Load(dir, fmt.Sprintf("n%d", i)); err != nil || typesOf(n) != fmt.Sprintf("t%d", i) {
				t.Errorf("n%d: %v, %v", i, n, err)
			}
		})
	}
	each.Wait()
	_, err := netconf.Load(dir, "absent")
	wantError{kind: netconf.ErrNotFound, network: "absent", text: `file "00-bad.conf"`}.check(t, err)
	nodetest.Equal(t, "opened for all", dir.FS.(counting).opened, want)
}

func TestADirIsListedOnceEvenIfItIsEmpty(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{}
	dir := &netconf.Dir{FS: fsys}
	_, err := netconf.Load(dir, "n")
	nodetest.Is(t, err, netconf.ErrNotFound)
	fsys["n.conf"] = &fstest.MapFile{Data: []byte(`{"name":"n","type":"t"}`)}
	_, err = netconf.Load(dir, "n")
	nodetest.Is(t, err, netconf.ErrNotFound)
}

// Names are never paths.
func TestNamesAreNeverPaths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "../blue", "a/b", "/etc/passwd", "blue\x00", "-blue", "blue\n"} {
		_, err := netconf.Load(failing{bad: "*"}, name)
		wantError{kind: netconf.ErrInvalid, network: name, key: "name"}.check(t, err)
	}
}

// failing is a file system of which one file or directory, or "*", cannot be opened.
type failing struct {
	fs.FS

	bad string
}

func (f failing) Open(name string) (fs.File, error) {
	if name == f.bad || f.bad == "*" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return f.FS.Open(name)
}

func TestLoadUnreadable(t *testing.T) {
	t.Parallel()
	good := files(confDir)
	_, err := netconf.Load(failing{good, "."}, "red")
	wantError{kind: nil, code: 5, network: "red"}.check(t, err)
	nodetest.Is(t, err, fs.ErrPermission)
	_, err = netconf.Load(failing{good, "10-red.conf"}, "red")
	wantError{kind: netconf.ErrNotFound, network: "red", text: `4 bad files, the first: invalid configuration: file "06-bad.conflist"`}.check(t, err)
	nodetest.Is(t, err, fs.ErrPermission)
	for bad, text := range map[string]string{"chain": `file "chain"`, "chain/10-a.conf": `file "chain/10-a.conf", network "chain"`} {
		_, err = netconf.Load(failing{good, bad}, "chain")
		wantError{kind: netconf.ErrNotFound, network: "chain", text: text}.check(t, err)
	}
	if n, err := netconf.Load(failing{good, "05-bad.conf"}, "blue"); err != nil || typesOf(n) != "second" {
		t.Errorf("an unreadable file hides a good one: %v", err)
	}
}

func TestLoadFile(t *testing.T) {
	t.Parallel()
	fsys := files(confDir)
	fsys["untyped.conf"] = &fstest.MapFile{Data: []byte(`{"name":"untyped"}`)}
	fsys["untyped.json"] = &fstest.MapFile{Data: []byte(`{"name":"untyped","type":""}`)}
	for file, want := range map[string]string{
		"10-red.conf":       "macvlan",
		"40-chain.conflist": "first second third",
		"41-only.conflist":  "alone",
		"43-lone.conf":      "x",
	} {
		n, err := netconf.LoadFile(fsys, file)
		if err != nil || typesOf(n) != want {
			t.Errorf("%s is of %q, %v; want %q", file, typesOf(n), err, want)
		}
	}
	for file, want := range map[string]wantError{
		"absent.conf":      {kind: netconf.ErrNotFound, file: "absent.conf"},
		"05-bad.conf":      {kind: netconf.ErrDecode, file: "05-bad.conf", text: "line 1, column 22"},
		"untyped.conf":     {kind: netconf.ErrInvalid, file: "untyped.conf", network: "untyped", key: "type", text: "missing"},
		"untyped.json":     {kind: netconf.ErrInvalid, file: "untyped.json", network: "untyped", key: "type", text: "missing"},
		"06-bad.conflist":  {kind: netconf.ErrInvalid, file: "06-bad.conflist", network: "blue", key: "plugins"},
		"07-sub.conflist":  {kind: netconf.ErrInvalid, file: "broken/10.conf", network: "broken", key: "type"},
		"44-none.conflist": {kind: netconf.ErrInvalid, file: "44-none.conflist", network: "none", key: "plugins"},
		"chain":            {kind: netconf.ErrInvalid, file: "chain", text: "not a regular file"},
		"chain/10.conf":    {kind: netconf.ErrInvalid, file: "chain/10.conf"},
		"../x.conf":        {kind: netconf.ErrInvalid, file: "../x.conf"},
		".":                {kind: netconf.ErrInvalid, file: "."},
		"..":               {kind: netconf.ErrInvalid, file: ".."},
		"":                 {kind: netconf.ErrInvalid},
	} {
		n, err := netconf.LoadFile(fsys, file)
		want.check(t, err)
		if !n.IsZero() {
			t.Errorf("%q: a network was returned with the error", file)
		}
		if errors.Is(err, fs.ErrNotExist) != (want.kind == netconf.ErrNotFound) {
			t.Errorf("%q: fs.ErrNotExist is %v", file, errors.Is(err, fs.ErrNotExist))
		}
	}
	_, err := netconf.LoadFile(nil, "x.conf")
	wantError{kind: netconf.ErrInvalid, file: "x.conf"}.check(t, err)
}

// found lists what Files finds, up to the file called last: "FILE NETWORK", or
// "FILE !" and the key that is wrong.
func found(fsys fs.FS, last string) []string {
	var all []string
	for f, err := range netconf.Files(fsys) {
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
	nodetest.Equal(t, "got", found(fsys, "10-red.conf"), want)
	const good = `{"name":"x","type":"a"}`
	fsys = files(map[string]string{
		"10-a.yaml": good, "10-b.CONF": good, "10-c": good, "10-d.conf_bak": good, "10-e.tmp-x.conf": good, "10-f.conf/x": "",
		"20-a.json": good, ".a.conf": good, "Z.conflist": `{"name":"z"}`, "z/1.conf": `{"type":"a"}`,
	})
	nodetest.Equal(t, "got", found(fsys, ""), []string{".a.conf x", "20-a.json x", "Z.conflist z"})
}

// What Files yields without an error can be run by a runtime.
func TestFilesThatNoRuntimeCanRunAreErrors(t *testing.T) {
	t.Parallel()
	for text, key := range map[string]string{
		`{"type":"a"}`:                               "name",
		`{"name":"x","type":"../a"}`:                 "plugins[0].type",
		`{"name":"x","type":".."}`:                   "plugins[0].type",
		`{"cniVersion":"x","name":"x","type":"a"}`:   "cniVersion",
		`{"cniVersion":"0","name":"x","type":"a"}`:   "cniVersion",
		`{"name":"x","plugins":[{"type":"a"}]}`:      "type", // a list, in a file of one plugin
		`{"name":"x","type":"a","mtu":1e99999}`:      "plugins[0].mtu",
		`{"name":"x","type":"a","name":"y"}`:         "name",
		strings.Repeat(" ", 16<<20) + `{"name":"x"}`: "",
	} {
		got := found(files(map[string]string{"1.conf": text}), "")
		nodetest.Equal(t, fmt.Sprintf("%.50q", text), got, []string{"1.conf !" + key})
	}
	for text, key := range map[string]string{
		`{"name":"x","plugins":[]}`:                                "plugins",
		`{"name":"x","plugins":[{}]}`:                              "plugins[0].type",
		`{"name":"x","plugins":[{"type":"a"},{"type":"b\u0000"}]}`: "plugins[1].type",
		`{"name":"x","type":"a"}`:                                  "plugins", // one plugin, in a file of a list
		`{"Name":"x","plugins":[{"type":"a"}]}`:                    "name",    // which libcni does not read
		`{"name":"x","Plugins":[{"type":"a"}]}`:                    "plugins",
		`{"cniVersion":null,"name":"x","plugins":[{"type":"a"}]}`:  "cniVersion",
		`{"name":"x","plugins":[{"type":"a"}],"Plugins":[]}`:       "plugins",
	} {
		nodetest.Equal(t, text, found(files(map[string]string{"1.conflist": text}), ""), []string{"1.conflist !" + key})
	}
	for text, name := range map[string]string{
		`{"name":"x","type":"a"}`: "1.conf", `{"Name":"x","Type":"a","plugins":[]}`: "1.json", `{"cniVersion":null,"name":"x","type":"a"}`: "1.conf",
		`{"cniVersion":"9.9.9","name":"x","plugins":[{"type":"a"}]}`: "1.conflist", `{"name":"x","Type":"a","plugins":[{"type":"b"}]}`: "1.conflist",
	} {
		nodetest.Equal(t, text, found(files(map[string]string{name: text}), ""), []string{name + " x"})
	}
}

func TestFilesOfADirectoryThatCannotBeListed(t *testing.T) {
	t.Parallel()
	for name, fsys := range map[string]fs.FS{"none": nil, "absent": failing{bad: "*"}} {
		n := 0
		for f, err := range netconf.Files(fsys) {
			if n++; err == nil || f.Name != "" {
				t.Errorf("%s: %+v, %v", name, f, err)
			}
		}
		nodetest.Equal(t, fmt.Sprintf("%s: results", name), n, 1)
	}
}

// What is not a regular file is refused without being opened, and hides no file
// that is.
func TestLoadOpensRegularFilesOnly(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fs.FileMode{
		"FIFO": fs.ModeNamedPipe, "socket": fs.ModeSocket, "device": fs.ModeDevice, "terminal": fs.ModeDevice | fs.ModeCharDevice,
		"something else": fs.ModeIrregular,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := counting{files(confDir), map[string]int{}}
			for _, name := range []string{"01-odd.conf", "02-odd.conflist", "03-odd.json", "only/00-odd.conf"} {
				fsys.MapFS[name] = &fstest.MapFile{Data: []byte(`{"name":"odd","type":"x"}`), Mode: mode}
			}
			if n, err := netconf.Load(fsys, "red"); err != nil || typesOf(n) != "macvlan" {
				t.Errorf("beside it: %q, %v", typesOf(n), err)
			}
			want := []string{"01-odd.conf !", "02-odd.conflist !", "03-odd.json !"}
			nodetest.Equal(t, "got", found(fsys, "03-odd.json"), want)
			_, err := netconf.Load(fsys, "odd")
			wantError{kind: netconf.ErrNotFound, network: "odd", text: `6 bad files, the first: invalid configuration: file "02-odd.conflist": not a regular file`}.check(t, err)
			_, err = netconf.Load(fsys, "only") // half a chain is not what was asked for
			wantError{kind: netconf.ErrNotFound, network: "only", text: `file "only/00-odd.conf"`}.check(t, err)
			_, err = netconf.ReadFile(fsys, "01-odd.conf")
			wantError{kind: netconf.ErrInvalid, file: "01-odd.conf", text: "not a regular file"}.check(t, err)
			_, err = netconf.LoadFile(fsys, "01-odd.conf")
			wantError{kind: netconf.ErrInvalid, file: "01-odd.conf", text: "not a regular file"}.check(t, err)
			for opened := range fsys.opened {
				if f := fsys.MapFS[opened]; f != nil && !f.Mode.IsRegular() {
					t.Errorf("%s is opened", opened) // a FIFO may wait for ever, a device have effects
				}
			}
		})
	}
}

func TestReadFileReadsBelowItsFileSystemOnly(t *testing.T) {
	t.Parallel()
	fsys := files(map[string]string{"a/b.conf": "text"})
	if data, err := netconf.ReadFile(fsys, "a/b.conf"); string(data) != "text" || err != nil {
		t.Errorf("read %q, %v", data, err)
	}
	for _, name := range []string{"", "/a/b.conf", "../b.conf", "a/../a/b.conf"} {
		_, err := netconf.ReadFile(fsys, name)
		wantError{kind: netconf.ErrInvalid, file: name}.check(t, err)
	}
	_, err := netconf.ReadFile(nil, "a")
	wantError{kind: netconf.ErrInvalid, file: "a"}.check(t, err)
	_, err = netconf.ReadFile(fsys, "a/c.conf")
	wantError{kind: netconf.ErrNotFound, file: "a/c.conf"}.check(t, err)
}
