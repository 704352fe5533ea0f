package resident_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/status"
)

// Registered types go to their resident, all others to the Exec below. The path
// of a registered type is not a file name.
func TestExecCallsResidentsForTheirTypesOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	far, near := fakes("far"), fakes("near")
	n.serve(newPlugin("10", "d", far, "far"))
	iv := n.invoker(near)
	done, err := iv.Add(t.Context(), attach(t, "c1", "near", "far"))
	ok(t, err)
	ok(t, iv.Check(t.Context(), done))
	ok(t, iv.Status(t.Context(), done.Network))
	ok(t, iv.GC(t.Context(), done.Network, nil))
	ok(t, iv.Del(t.Context(), done))
	for x, typ := range map[*delegatetest.Exec]string{far: "far", near: "near"} {
		want := []string{"ADD " + typ + " eth0", "CHECK " + typ + " eth0", "STATUS " + typ, "GC " + typ, "DEL " + typ + " eth0"}
		if d := cmp.Diff(want, x.Trace()); d != "" {
			t.Errorf("%s (-want +got):\n%s", typ, d)
		}
	}
	x := n.Exec(near)
	path, err := x.FindInPath("far", nil)
	ok(t, err)
	if _, err := os.Lstat(path); err == nil || !strings.ContainsRune(path, 0) {
		t.Errorf("%q may be a file's", path)
	}
	if _, err := x.FindInPath("nowhere", nil); err == nil {
		t.Error("the Exec below was not asked")
	}
}

// libcni can use the Exec, also for VERSION.
func TestExecWorksWithLibcni(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	far := fakes("first", "second")
	n.serve(newPlugin("10", "d", far, "first", "second"))
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"first"},{"type":"second"}]}`))
	ok(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, t.TempDir(), n.Exec(&delegatetest.Exec{}))
	rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: [][2]string{{"CNI_NETNS_OVERRIDE", "1"}}}
	versions, err := cni.ValidateNetworkList(t.Context(), list)
	ok(t, err)
	if len(versions) != 0 {
		t.Errorf("capabilities %q", versions)
	}
	info, err := cni.GetVersionInfo(t.Context(), "first")
	ok(t, err)
	if got := fmt.Sprint(info.SupportedVersions()); !strings.Contains(got, "1.1.0") {
		t.Errorf("versions %s", got)
	}
	_, err = cni.AddNetworkList(t.Context(), list, rt)
	ok(t, err)
	ok(t, cni.CheckNetworkList(t.Context(), list, rt))
	ok(t, cni.GetStatusNetworkList(t.Context(), list))
	ok(t, cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}))
	ok(t, cni.DelNetworkList(t.Context(), list, rt))
	if live := far.Live(); len(live) > 0 {
		t.Errorf("alive: %q", live)
	}
	for _, c := range far.Calls() {
		if c.Command == "ADD" && c.Plugin == "second" && !strings.Contains(string(c.Stdin), "prevResult") {
			t.Errorf("no prevResult in %s", c.Stdin)
		}
	}
}

func TestExecReturnsStdoutByteForByte(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	const printed = " {\"cniVersion\" : \"1.1.0\", \"x\": 1e3, \"y\": \"<&>\\u00e9\xff\", \"dup\": 1, \"dup\": 2}\n\n"
	n.serve(with("10", "p", func(context.Context, delegatetest.Call) ([]byte, error) { return []byte(printed), nil }))
	out, err := n.exec(t.Context(), "p", "ADD", "c1")
	if err != nil || string(out) != printed {
		t.Errorf("%q, %v", out, err)
	}
}

// The error is that of the plugin, and contains nothing of its stdin.
func TestExecReturnsTheErrorOfThePlugin(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err, want error
	}{
		"with a code":    {types.NewError(107, "no device", "all 8 in use"), types.NewError(107, "no device", "all 8 in use")},
		"wrapped":        {fmt.Errorf("opening: %w", types.NewError(5, "stuck", "")), types.NewError(5, "opening: stuck", "")},
		"without a code": {errors.New("some words"), types.NewError(999, "some words", "")},
		"panic":          {nil, types.NewError(999, "the plugin panicked", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t).start()
			n.serve(with("10", "p", func(context.Context, delegatetest.Call) ([]byte, error) {
				if tt.err == nil {
					panic("secret")
				}
				return []byte("half a result"), tt.err
			}))
			_, err := n.exec(t.Context(), "p", "ADD", "c1")
			if d := cmp.Diff(tt.want, err); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Calls that package skel refuses in a process are refused in a resident.
func TestExecRefusesWhatSkelRefuses(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	x := fakes("p")
	n.serve(newPlugin("10", "p", x))
	for name, tt := range map[string]struct{ command, id, env string }{
		"unknown command": {"JUMP", "c1", ""},
		"no command":      {"", "c1", ""},
		"no container":    {"ADD", "", ""},
		"bad container":   {"ADD", "../c1", ""},
		"bad interface":   {"ADD", "c1", "CNI_IFNAME=a/b"},
		"no path":         {"ADD", "c1", "CNI_PATH="},
	} {
		_, err := n.exec(t.Context(), "p", tt.command, tt.id, tt.env)
		if status.Code(err) != 4 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if calls := x.Trace(); len(calls) > 0 {
		t.Errorf("called: %q", calls)
	}
	_, err := n.exec(t.Context(), "p", "ADD", "c1", "CNI_NETNS_OVERRIDE=", "CNI_NETNS=/proc/self/ns/net")
	wantCode(t, err, types.ErrInvalidNetNS)
}

// When the context of a call ends, so does that of the handler. The call fails
// with code 11, and the connection stays.
func TestExecEndsTheHandlerWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	in, out := make(chan struct{}), make(chan error, 1)
	n.serve(with("10", "p", func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "hang" {
			close(in)
			<-ctx.Done()
			out <- ctx.Err()
			return nil, ctx.Err()
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-in
		cancel()
	}()
	_, err := n.exec(ctx, "p", "ADD", "hang")
	wantCode(t, err, 11)
	if !errors.Is(err, context.Canceled) || errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
	if err := come(t, out, "the end of the handler's context"); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context: %v", err)
	}
	if _, err := n.exec(t.Context(), "p", "ADD", "c2"); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if d := cmp.Diff([]string{"10-p ready"}, n.seen()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestExecTellsTheDeadline(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	told := make(chan bool, 1)
	n.serve(with("10", "p", func(ctx context.Context, _ delegatetest.Call) ([]byte, error) {
		_, has := ctx.Deadline()
		told <- has
		return nil, nil
	}))
	_, err := n.exec(t.Context(), "p", "DEL", "c1")
	ok(t, err)
	if !come(t, told, "the call") {
		t.Error("no deadline")
	}
}

// The DEL after an ADD whose context has ended waits for the handler of the
// ADD. The DEL of another container does not.
func TestExecRunsDelAfterTheAddThatItUndoes(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	in, out := make(chan struct{}), make(chan struct{})
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			close(in)
			<-out // even when its context ends
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}}}
	n.serve(newPlugin("10", "p", x))
	ctx, cancel := context.WithCancel(t.Context())
	added := make(chan error, 1)
	go func() {
		_, err := n.exec(ctx, "p", "ADD", "c1")
		added <- err
	}()
	come(t, in, "the ADD")
	cancel()
	wantCode(t, come(t, added, "its end"), 11)
	deleted := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "p", "DEL", "c1")
		deleted <- err
	}()
	_, err := n.exec(t.Context(), "p", "DEL", "c2")
	ok(t, err)
	if d := cmp.Diff([]string{"ADD p eth0", "DEL p eth0"}, x.Trace()); d != "" {
		t.Errorf("beside the ADD (-want +got):\n%s", d)
	}
	close(out)
	ok(t, come(t, deleted, "the DEL"))
	if live := x.Live(); len(live) > 0 {
		t.Errorf("alive: %q", live)
	}
}

// 200 calls succeed, of which 96 run at the same time.
func TestExecRunsManyCallsAtTheSameTime(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("10", "p"))
	errs := make(chan error)
	for i := range 200 {
		go func() {
			_, err := n.exec(t.Context(), "p", "ADD", fmt.Sprint("c", i))
			errs <- err
		}()
	}
	for range 200 {
		ok(t, come(t, errs, "an answer"))
	}
}

func TestExecPassesOnlyVariablesOfCNIAndTraces(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	x := fakes("p")
	n.serve(newPlugin("10", "p", x))
	_, err := n.exec(t.Context(), "p", "ADD", "c1", "TRACEPARENT=00-1", "SECRET=hunter2", "PATH=/bin")
	ok(t, err)
	want := []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/c1", "CNI_NETNS_OVERRIDE=1",
		"CNI_PATH=/opt/cni/bin", "TRACEPARENT=00-1",
	}
	if d := cmp.Diff(want, x.Calls()[0].Env); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
