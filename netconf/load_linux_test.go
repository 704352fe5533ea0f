package netconf_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// A FIFO that nobody writes to, or a device without end, does not keep anyone
// waiting, by whatever name it is reached.
func TestLoadDoesNotWaitForFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		nodetest.OK(t, err)
	}
	must(syscall.Mkfifo(at("00-fifo.conf"), 0o600))
	must(os.Symlink("00-fifo.conf", at("01-link.conflist")))
	must(os.Symlink("/dev/zero", at("02-zero.json")))
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", at("03-s.conf"))
	must(err)
	defer func() { _ = l.Close() }()
	must(os.Mkdir(at("dir"), 0o700))
	must(os.Symlink("dir", at("04-dir.conf")))
	must(os.WriteFile(at("10-blue.conf"), []byte(`{"name":"blue","type":"x"}`), 0o600))

	for _, name := range []string{"00-fifo.conf", "01-link.conflist", "02-zero.json", "03-s.conf", "04-dir.conf", "dir"} {
		_, err := netconf.LoadFile(os.DirFS(dir), name)
		wantError{kind: netconf.ErrInvalid, file: name, text: "not a regular file"}.check(t, err)
	}
	if n, err := netconf.Load(os.DirFS(dir), "blue"); err != nil || n.Name() != "blue" {
		t.Errorf("beside them: %q, %v", n.Name(), err)
	}
	_, err = netconf.Load(os.DirFS(dir), "green")
	wantError{kind: netconf.ErrNotFound, network: "green", text: `"00-fifo.conf": not a regular file`}.check(t, err)
}
