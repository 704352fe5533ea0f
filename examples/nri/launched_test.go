package main

import (
	"errors"
	"io"
	"log/syslog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
)

// A runtime launches plugins without PATH. CNI plugins then get the default one, to
// find programs such as iptables.
func TestPluginsHaveAPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		env, want []string
	}{
		{"none", []string{"A=b"}, []string{"A=b", "PATH=" + plugin.DefaultPath}},
		{"an empty one", []string{"PATH=", "A=b"}, []string{"PATH=", "A=b", "PATH=" + plugin.DefaultPath}},
		{"its own", []string{"PATH=/bin", "A=b"}, []string{"PATH=/bin", "A=b"}},
	} {
		if got := plugin.WithPath(tt.env); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A runtime that launches plugins discards their stderr. The log then goes to the
// system's log.
func TestLogIsNotThrownAway(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "log")
	l, err := net.ListenPacket("unixgram", socket)
	nodetest.OK(t, err)
	defer l.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	nodetest.OK(t, err)
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	nodetest.OK(t, err)
	defer file.Close()
	system := func() (io.Writer, error) { return syslog.Dial("unixgram", socket, priority, "nri") }
	none := func() (io.Writer, error) { return nil, errors.New("no system log") }
	if w := destination(file, system); w != io.Writer(file) {
		t.Errorf("logs to %v though there is a stderr", w)
	}
	if w := destination(null, none); w != io.Writer(null) {
		t.Errorf("logs to %v, and there is only a stderr", w)
	}
	if _, err := io.WriteString(destination(null, system), "hello\n"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<10)
	k, _, err := l.ReadFrom(buf)
	if got := string(buf[:k]); err != nil || !strings.Contains(got, "nri[") || !strings.HasSuffix(got, ": hello\n") {
		t.Errorf("%q, %v", got, err)
	}
}
