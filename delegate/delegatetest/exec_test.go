package delegatetest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

var _ delegate.Exec = (*delegatetest.Exec)(nil)

// A leak is seen: the second plugin fails, and nobody undoes the first.
func Example() {
	ctx := context.Background()
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.Result(nil),
		"sriov":  delegatetest.FailOn("ADD", 11, "no free device", delegatetest.Result(nil)),
	}}
	for _, plugin := range []string{"bridge", "sriov"} {
		path, err := exec.FindInPath(plugin, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = exec.ExecPlugin(ctx, path, []byte(`{"cniVersion":"1.0.0"}`), []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0"})
		fmt.Println(plugin, err)
	}
	fmt.Println(strings.Join(exec.Trace(), "\n"))
	fmt.Println(strings.Join(exec.Live(), "\n"))
	// Output:
	// bridge <nil>
	// sriov no free device
	// ADD bridge eth0
	// ADD sriov eth0
	// bridge c1 eth0
	// sriov c1 eth0
}

// call runs one command of the plugin called typ.
func call(x *delegatetest.Exec, command, typ, container, ifname, stdin string) ([]byte, error) {
	return x.ExecPlugin(context.Background(), "/delegatetest/"+typ, []byte(stdin), []string{
		"PATH=/bin", "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=" + ifname, "CNI_NETNS=/n", "CNI_ARGS=A=b=c",
	})
}

func TestLiveListsWhatIsAttached(t *testing.T) {
	t.Parallel()
	ok := delegatetest.Result(nil)
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"good": ok, "badadd": delegatetest.FailOn("ADD", 5, "no", ok), "baddel": delegatetest.FailOn("DEL", 5, "no", ok), "noisy": delegatetest.NoiseOn("DEL", "x", ok),
	}}
	for i, step := range []struct {
		command, typ, container, ifname string
		fails                           bool
		live                            []string
	}{
		{"DEL", "good", "c", "e", false, nil}, // before any ADD
		{"ADD", "good", "c", "e", false, []string{"good c e"}},
		{"ADD", "good", "c", "e", false, []string{"good c e"}}, // listed once
		{"ADD", "good", "b", "e", false, []string{"good b e", "good c e"}},
		{"CHECK", "good", "b", "e", false, []string{"good b e", "good c e"}},
		{"DEL", "good", "b", "f", false, []string{"good b e", "good c e"}}, // another interface
		{"DEL", "good", "b", "e", false, []string{"good c e"}},
		{"ADD", "badadd", "c", "e", true, []string{"badadd c e", "good c e"}}, // it may have done a part
		{"DEL", "badadd", "c", "e", false, []string{"good c e"}},
		{"ADD", "baddel", "c", "e", false, []string{"baddel c e", "good c e"}},
		{"DEL", "baddel", "c", "e", true, []string{"baddel c e", "good c e"}},
		{"ADD", "noisy", "c", "e", false, []string{"baddel c e", "good c e", "noisy c e"}},
		{"DEL", "noisy", "c", "e", false, []string{"baddel c e", "good c e"}},
		{"DEL", "good", "c", "e", false, []string{"baddel c e"}},
	} {
		_, err := call(x, step.command, step.typ, step.container, step.ifname, `{"cniVersion":"1.0.0"}`)
		nodetest.Equal(t, fmt.Sprintf("step %d: %v", i, err), err != nil, step.fails)
		nodetest.Equal(t, fmt.Sprintf("step %d, %s %s: alive", i, step.command, step.typ), x.Live(), step.live)
	}
}

func TestCallsAreRecordedAsCopies(t *testing.T) {
	t.Parallel()
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": delegatetest.Result(nil)}}
	in, env := []byte(`{"cniVersion":"1.1.0"}`), []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=/n", "CNI_IFNAME=e", "CNI_ARGS=A=b=c", "X=1"}
	if _, err := x.ExecPlugin(t.Context(), "/opt/p", in, env); err != nil {
		t.Fatal(err)
	}
	want := []delegatetest.Invocation{{
		Command: "ADD", Plugin: "p", ContainerID: "c", NetNS: "/n", IfName: "e", Args: "A=b=c",
		Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=/n", "CNI_IFNAME=e", "CNI_ARGS=A=b=c", "X=1"}, Stdin: []byte(`{"cniVersion":"1.1.0"}`),
	}}
	in[0], env[0] = 'x', "x" // the calls are copies
	got := x.Calls()
	nodetest.Equal(t, "calls", got, want)
	got[0].Plugin = "x" // so is the list
	if _, err := x.ExecPlugin(t.Context(), "/opt/p", nil, []string{"CNI_COMMAND=GC", "garbage"}); err != nil {
		t.Fatal(err)
	}
	nodetest.Equal(t, "trace", x.Trace(), []string{"ADD p e", "GC p"})
}

func TestAnUnknownPluginIsAnError(t *testing.T) {
	t.Parallel()
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"b": nil, "a": nil}}
	if path, err := x.FindInPath("a", nil); err != nil || path != "/delegatetest/a" {
		t.Errorf("a is at %q: %v", path, err)
	}
	if _, err := x.FindInPath("c", []string{"/bin"}); err == nil || err.Error() != `not found among the fakes ["a" "b"]` {
		t.Errorf("err = %v", err)
	}
	if _, err := new(delegatetest.Exec).ExecPlugin(t.Context(), "/bin/c", nil, []string{"CNI_COMMAND=ADD"}); err == nil {
		t.Error("ran what is not there")
	}
	nodetest.Equal(t, "alive in nothing", new(delegatetest.Exec).Live(), nil)
}

func TestResultAnswersInTheVersionOfTheConfiguration(t *testing.T) {
	t.Parallel()
	r := &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: "eth0"}}}
	tests := []struct {
		name, stdin string
		result      types.Result
		want        string
		code        uint
	}{
		{"empty", `{"cniVersion":"1.0.0"}`, nil, `{"cniVersion":"1.0.0"}`, 0},
		{"empty of no version", `{}`, nil, `{"cniVersion":"0.1.0"}`, 0},
		{"prevResult", `{"cniVersion":"1.0.0","prevResult":{"x":1.0}}`, nil, `{"x":1.0}`, 0},
		{"prevResult null", `{"cniVersion":"1.0.0","prevResult":null}`, nil, `{"cniVersion":"1.0.0"}`, 0},
		{"given", `{"cniVersion":"1.1.0"}`, r, `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}`, 0},
		{"given, in another version", `{"cniVersion":"0.4.0"}`, r, `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0"}]}`, 0},
		{"given, in no version", `{}`, &types100.Result{CNIVersion: "1.0.0", IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 1, 0, 2), Mask: net.CIDRMask(24, 32)}}}}, `{"cniVersion":"0.1.0"}`, 0},
		{"unknown version", `{"cniVersion":"9.0.0"}`, r, "", types.ErrIncompatibleCNIVersion},
		{"not JSON", `{`, r, "", types.ErrDecodingFailure},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": delegatetest.Result(tt.result)}}
			out, err := call(x, "ADD", "p", "c", "e", tt.stdin)
			var said *types.Error
			if tt.code != 0 {
				if !errors.As(err, &said) || said.Code != tt.code {
					t.Errorf("err = %v, want code %d", err, tt.code)
				}
				return
			}
			if err != nil || !strings.Contains(compact(string(out)), strings.TrimSuffix(tt.want, "}")) {
				t.Errorf("printed %s, want %s: %v", out, tt.want, err)
			}
			if _, err := create.CreateFromBytes(out); err != nil && tt.name != "prevResult" {
				t.Errorf("%s is no result: %v", out, err)
			}
		})
	}
}

// compact removes the empty dns that results of old versions print.
func compact(s string) string { return strings.ReplaceAll(s, `,"dns":{}`, "") }

// A killed process says no more than that, and its DEL counts as not done.
func TestHangOnWaitsForTheContext(t *testing.T) {
	t.Parallel()
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": delegatetest.HangOn("DEL", delegatetest.Result(nil))}}
	if _, err := call(x, "ADD", "p", "c", "e", `{}`); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := x.ExecPlugin(ctx, "/p", nil, []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=c", "CNI_IFNAME=e"})
	if err == nil || err.Error() != "signal: killed" || !slices.Equal(x.Live(), []string{"p c e"}) {
		t.Errorf("%v, alive %q", err, x.Live())
	}
}

func TestEachFaultDoesWhatItsNameSays(t *testing.T) {
	t.Parallel()
	const conf = `{"cniVersion":"1.0.0"}`
	for _, tt := range []struct {
		name  string
		fault func(command string, p delegatetest.Fake) delegatetest.Fake
		did   bool // its work
		out   string
		code  uint // 0: none
		fails bool
	}{
		{"fail", func(c string, p delegatetest.Fake) delegatetest.Fake {
			return delegatetest.FailOn(c, 107, "no", p)
		}, false, "", 107, true},
		{"kill", delegatetest.KillOn, true, "", 0, true},
		{"noise", func(c string, p delegatetest.Fake) delegatetest.Fake {
			return delegatetest.NoiseOn(c, "hello ", p)
		}, true, "hello " + conf, 0, false},
		{"garbage", delegatetest.GarbageOn, true, `{"cniVersion":`, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			did := 0
			base := func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
				did++
				return delegatetest.Result(nil)(ctx, c)
			}
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"one": tt.fault("ADD", base), "all": tt.fault("", base)}}
			for _, typ := range []string{"one", "all"} {
				did = 0
				out, err := call(x, "ADD", typ, "c", "e", conf)
				var said *types.Error
				if string(out) != tt.out || (err != nil) != tt.fails || errors.As(err, &said) != (tt.code != 0) || said != nil && said.Code != tt.code {
					t.Errorf("%s printed %q: %v", typ, out, err)
				}
				if (did == 1) != tt.did {
					t.Errorf("%s worked %d times", typ, did)
				}
			}
			if out, err := call(x, "VERSION", "one", "", "", ""); err != nil || !strings.Contains(string(out), "supportedVersions") {
				t.Errorf("another command printed %q: %v", out, err)
			}
		})
	}
	// What fails by itself, fails as it did.
	failing := delegatetest.FailOn("ADD", 11, "no", delegatetest.Result(nil))
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"p": delegatetest.GarbageOn("ADD", failing)}}
	if _, err := call(x, "ADD", "p", "c", "e", conf); err == nil || err.Error() != "no" {
		t.Errorf("err = %v", err)
	}
	x.Plugins["noisy"] = delegatetest.NoiseOn("ADD", "hello", failing)
	out, err := call(x, "ADD", "noisy", "c", "e", conf)
	nodetest.Equal(t, "printed", string(out), "hello")
	nodetest.Fails(t, err, 11, "no")
}

func TestSlowOnWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"slow": delegatetest.SlowOn("ADD", time.Hour, delegatetest.Result(nil))}}
		start := time.Now()
		if out, err := call(x, "ADD", "slow", "c", "e", "{}"); err != nil || out == nil || time.Since(start) != time.Hour {
			t.Errorf("after %v: %q, %v", time.Since(start), out, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if out, err := x.ExecPlugin(ctx, "slow", []byte(`{}`), []string{"CNI_COMMAND=ADD"}); err == nil || err.Error() != "signal: killed" || out != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// A Script kills the third call of the run, whichever plugin it is for.
func ExampleExec_script() {
	ok := delegatetest.Result(nil)
	exec := &delegatetest.Exec{
		Plugins: map[string]delegatetest.Fake{"bridge": ok, "sriov": ok},
		Script: func(n int, _ delegatetest.Invocation, p delegatetest.Fake) delegatetest.Fake {
			if n == 3 {
				return delegatetest.KillOn("", p)
			}
			return p
		},
	}
	for _, command := range []string{"ADD", "DEL"} {
		for _, plugin := range []string{"bridge", "sriov"} {
			_, err := exec.ExecPlugin(context.Background(), plugin, []byte(`{}`), []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1"})
			fmt.Println(command, plugin, err)
		}
	}
	fmt.Println(exec.Live())
	// Output:
	// ADD bridge <nil>
	// ADD sriov <nil>
	// DEL bridge signal: killed
	// DEL sriov <nil>
	// [bridge c1 ]
}

// A meta-plugin of one delegate runs without a process.
func ExampleRunPlugin() {
	mine := plugin.Plugin{
		Add: func(ctx context.Context, c *plugin.Call) error {
			iv := &delegate.Invoker{Exec: c.System.Exec, Env: c.System.Env, Path: []string{"/opt/cni/bin"}}
			n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"blue","type":"bridge"}`))
			if err != nil {
				return err
			}
			added, err := iv.Add(ctx, c.Attachment(n))
			if err != nil {
				return err
			}
			return added.PrintTo(c.System.Stdout, c.CNIVersion)
		},
	}
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.Result(&types100.Result{CNIVersion: "1.1.0"}),
	}}
	add := delegatetest.Invocation{
		Command: "ADD", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin",
		Stdin: []byte(`{"cniVersion":"1.1.0","name":"multi","type":"mine"}`),
	}
	out := delegatetest.RunPlugin(context.Background(), mine.Execute, fake, add)
	fmt.Printf("%d %s", out.Status, out.Stdout)

	fake.Plugins["bridge"] = delegatetest.FailOn("ADD", 11, "no free address", delegatetest.Result(nil))
	out = delegatetest.RunPlugin(context.Background(), mine.Execute, fake, add)
	fmt.Printf("%d %s", out.Status, out.Stdout)
	fmt.Println(fake.Live())
	// Output:
	// 0 {"cniVersion":"1.1.0"}
	// 1 {"cniVersion":"1.1.0","code":11,"msg":"ADD network \"blue\" (eth0): plugin \"bridge\": no free address"}
	// []
}

func TestRunPluginHidesTheEnvironmentOfTheProcess(t *testing.T) {
	t.Parallel()
	var seen []string
	p := plugin.Plugin{GC: func(_ context.Context, c *plugin.Call) error {
		seen = c.System.Env
		return nil
	}}
	c := delegatetest.Invocation{Command: "GC", Path: "/p", Env: []string{"X=1", "CNI_COMMAND=ADD", "CNI_ARGS=kept", "CNI_PATH=gone"}, Stdin: []byte(`{"cniVersion":"1.1.0","name":"n"}`)}
	before := slices.Clone(c.Env)
	if o := delegatetest.RunPlugin(t.Context(), p.Execute, nil, c); o.Err() != nil || len(o.Stdout) > 0 {
		t.Errorf("printed %q: %v", o.Stdout, o.Err())
	}
	nodetest.Equal(t, "environment", seen, []string{"X=1", "CNI_ARGS=kept", "CNI_COMMAND=GC", "CNI_PATH=/p"})
	nodetest.Equal(t, "the caller's was changed", c.Env, before)
}

func TestOutcomeTellsResultsFromErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		o           delegatetest.Outcome
		result, err string // of the errors
	}{
		{delegatetest.Outcome{Stdout: []byte(" {\"cniVersion\":\"1.0.0\"}\n")}, "", ""},
		{delegatetest.Outcome{}, "no JSON document", ""},
		{delegatetest.Outcome{Stdout: []byte("{}x")}, "more than one", ""},
		{delegatetest.Outcome{Stdout: []byte(`{"cniVersion":"1.0.0","ips":5}`)}, "is no result", ""},
		{delegatetest.Outcome{Status: 3, Stdout: []byte(`{}`)}, "exit status 3", "exit status 3"},
		{delegatetest.Outcome{Status: -1, Stderr: []byte("why\n")}, `stderr "why"`, `stderr "why"`},
		{delegatetest.Outcome{Status: 1, Stdout: []byte(`{"code":5,"msg":"m"}`)}, "m", "m"},
	} {
		_, result := tt.o.Result()
		for what, pair := range map[string]struct {
			err  error
			want string
		}{"result": {result, tt.result}, "err": {tt.o.Err(), tt.err}} {
			if (pair.err == nil) != (pair.want == "") || pair.err != nil && !strings.Contains(pair.err.Error(), pair.want) {
				t.Errorf("%+v: %s: %v, want %q", tt.o, what, pair.err, pair.want)
			}
		}
	}
}

// A meta-plugin delegates to another one, which delegates to a fake, in one Exec.
func TestProgramIsAFakeOfAnother(t *testing.T) {
	t.Parallel()
	inner := plugin.Plugin{
		StateDir: t.TempDir(),
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			return conf.Delegates, err
		},
		Status: func(context.Context, *plugin.Call) error { panic("at the disco") },
	}
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}}
	x.Plugins["inner"] = delegatetest.Program(inner.Execute).Plugin(x)
	do := func(command string) (string, error) {
		out, err := x.ExecPlugin(t.Context(), "/bin/inner", []byte(`{"cniVersion":"1.1.0","name":"n","type":"inner","delegates":[{"type":"bridge"}]}`), []string{
			"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=/absent", "CNI_IFNAME=eth0", "CNI_PATH=/bin",
		})
		return strings.TrimSpace(string(out)), err
	}
	out, err := do("ADD")
	nodetest.OK(t, err)
	nodetest.Equal(t, "result", out, `{"cniVersion":"1.1.0"}`)
	nodetest.Equal(t, "live after ADD", x.Live(), []string{"bridge c1 eth0", "inner c1 eth0"})
	_, err = do("DEL")
	nodetest.OK(t, err)
	nodetest.Equal(t, "live after DEL", x.Live(), nil)
	nodetest.Equal(t, "trace", x.Trace(), []string{"ADD inner eth0", "ADD bridge eth0", "DEL inner eth0", "DEL bridge eth0"})

	_, err = do("STATUS")
	nodetest.Says(t, err, "exit status 2", "panic: at the disco")
	x.Plugins["bridge"] = delegatetest.FailOn("ADD", 107, "no free device", x.Plugins["bridge"])
	_, err = do("ADD")
	nodetest.Fails(t, err, 107, "no free device")
	nodetest.Equal(t, "live after a failure", x.Live(), []string{"inner c1 eth0"})
}
