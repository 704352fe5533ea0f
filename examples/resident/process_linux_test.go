package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// The tests here run resident as the processes that it is: its executable is
// that of the tests, by the name it is called with.

func TestMain(m *testing.M) {
	if base := filepath.Base(os.Args[0]); base == pluginType || base == "10-"+pluginType {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// executable returns the path of resident in dir, by a name.
func executable(tb testing.TB, dir, name string) string {
	tb.Helper()
	exe, err := os.Executable()
	nodetest.OK(tb, err)
	nodetest.OK(tb, os.Chmod(exe, 0o755)) // whatever the umask was when it was built
	path := filepath.Join(dir, name)
	nodetest.OK(tb, os.Symlink(exe, path))
	return path
}

// ways are the ways to run resident: each returns what to run it with.
func ways() map[string]func(testing.TB) *delegate.Invoker {
	return map[string]func(testing.TB) *delegate.Invoker{
		"anew": func(tb testing.TB) *delegate.Invoker {
			tb.Helper()
			dir := tb.TempDir()
			executable(tb, dir, pluginType)
			return &delegate.Invoker{Path: []string{dir}}
		},
		"launched": func(tb testing.TB) *delegate.Invoker {
			tb.Helper()
			dir := tb.TempDir()
			executable(tb, dir, "10-"+pluginType)
			r := &resident.Host{Dir: dir, RegisterTimeout: time.Minute}
			nodetest.OK(tb, r.Start(tb.Context()))
			tb.Cleanup(func() { nodetest.OK(tb, r.Stop(context.WithoutCancel(tb.Context()))) })
			return &delegate.Invoker{Exec: r.Exec(nil), Path: []string{tb.TempDir()}}
		},
		"staying": func(tb testing.TB) *delegate.Invoker {
			tb.Helper()
			dir := nodetest.ShortDir(tb)
			socket := filepath.Join(dir, "s")
			l, err := net.Listen("unix", socket)
			nodetest.OK(tb, err)
			ready := make(chan struct{})
			r := &resident.Host{Listener: l, RegisterTimeout: time.Minute, Observer: func(s resident.Status) {
				if s.State == resident.Ready {
					close(ready)
				}
			}}
			nodetest.OK(tb, r.Start(tb.Context()))
			tb.Cleanup(func() { nodetest.OK(tb, r.Stop(context.WithoutCancel(tb.Context()))) })
			c := exec.CommandContext(context.WithoutCancel(tb.Context()), executable(tb, dir, pluginType), "-socket", socket)
			var stderr bytes.Buffer
			c.Env, c.Stderr = []string{}, &stderr
			nodetest.OK(tb, c.Start())
			tb.Cleanup(func() {
				nodetest.OK(tb, c.Process.Signal(syscall.SIGTERM))
				if err := c.Wait(); err != nil {
					tb.Errorf("%v: %s", err, &stderr)
				}
			})
			<-ready
			return &delegate.Invoker{Exec: r.Exec(nil), Path: []string{tb.TempDir()}}
		},
	}
}

func attachment(tb testing.TB, addresses string) delegate.Attachment {
	tb.Helper()
	n := nodetest.Parse(`{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"resident","addresses":` + addresses + `}]}`)
	return delegate.Attachment{Network: n, ContainerID: "c1", NetNS: "/no-such-directory/c1", IfName: "eth0"}
}

// Every way gives the same, byte for byte, errors too.
func TestSameEitherWay(t *testing.T) {
	t.Parallel()
	for name, way := range ways() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			iv := way(t)
			done, err := iv.Add(t.Context(), attachment(t, `["10.1.0.2/24"]`))
			nodetest.OK(t, err)
			nodetest.Equal(t, "result", strings.TrimSpace(string(done.Result)), `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}`)
			nodetest.OK(t, iv.Check(t.Context(), done))
			nodetest.OK(t, iv.Status(t.Context(), done.Network))
			nodetest.OK(t, iv.GC(t.Context(), done.Network, nil))
			nodetest.OK(t, iv.Del(t.Context(), done))
			_, err = iv.Add(t.Context(), attachment(t, `["nonsense"]`))
			var failed *delegate.Error
			if status.Code(err) != 7 || !errors.As(err, &failed) ||
				failed.Err.Error() != `resident: address "nonsense" is not one with the length of its prefix` {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// A host that is away is waited for, until the process is told to end.
func TestWaitsForAHost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var stderr nodetest.Log
	end := make(chan error)
	go func() { end <- stay(ctx, []string{pluginType, "-socket", t.TempDir() + "/none"}, nil, &stderr) }()
	nodetest.Until(t, "it says that it waits", func() bool { return stderr.String() != "" })
	cancel()
	nodetest.OK(t, nodetest.Come(t, end, "the end"))
}

func TestStayRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, environ []string }{
		{[]string{pluginType, "-nonsense"}, nil},
		{[]string{pluginType}, []string{"CNI_RELAY_SOCKET=x"}},
	} {
		nodetest.Refused(t, "nonsense", stay(t.Context(), tt.args, tt.environ, new(bytes.Buffer)))
	}
}

// One ADD and its DEL, by the way the plugin is run.
func BenchmarkAddDel(b *testing.B) {
	for name, way := range ways() {
		b.Run(name, func(b *testing.B) {
			iv := way(b)
			a := attachment(b, `["10.1.0.2/24"]`)
			for b.Loop() {
				done, err := iv.Add(b.Context(), a)
				nodetest.OK(b, err)
				nodetest.OK(b, iv.Del(b.Context(), done))
			}
		})
	}
}
