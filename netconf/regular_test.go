package netconf_test

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// An unopenable file system has files that are not to be opened: to open a FIFO
// may wait for ever, and to open a device may have effects.
type unopenable struct {
	fstest.MapFS

	t *testing.T
}

func (u unopenable) Open(name string) (fs.File, error) {
	if f := u.MapFS[name]; f != nil && !f.Mode.IsRegular() {
		u.t.Errorf("%s is opened", name)
	}
	return u.MapFS.Open(name)
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
			fsys := unopenable{files(confDir), t}
			for _, name := range []string{"01-odd.conf", "02-odd.conflist", "03-odd.json", "only/00-odd.conf"} {
				fsys.MapFS[name] = &fstest.MapFile{Data: []byte(`{"name":"odd","type":"x"}`), Mode: mode}
			}
			if n, err := netconf.Load(fsys, "red"); err != nil || typesOf(n) != "macvlan" {
				t.Errorf("beside it: %q, %v", typesOf(n), err)
			}
			want := []string{"01-odd.conf !", "02-odd.conflist !", "03-odd.json !"}
			nodetest.Equal(t, "got", found(fsys, nil, "03-odd.json"), want)
			_, err := netconf.Load(fsys, "odd")
			wantError{kind: netconf.ErrNotFound, network: "odd", text: `6 bad files, the first: invalid configuration: file "01-odd.conf": not a regular file`}.check(t, err)
			_, err = netconf.Load(fsys, "only") // half a chain is not what was asked for
			wantError{kind: netconf.ErrNotFound, network: "only", text: `file "only/00-odd.conf"`}.check(t, err)
			_, err = netconf.ReadFile(fsys, "01-odd.conf")
			wantError{kind: netconf.ErrInvalid, file: "01-odd.conf", text: "not a regular file"}.check(t, err)
			_, err = netconf.LoadFileFS(fsys, "01-odd.conf")
			wantError{kind: netconf.ErrInvalid, file: "01-odd.conf", text: "not a regular file"}.check(t, err)
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
