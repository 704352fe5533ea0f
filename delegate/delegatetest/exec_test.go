package delegatetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"

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
	exec := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": delegatetest.Result(nil)}}
	in, env := []byte(`{"cniVersion":"1.1.0"}`), []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_NETNS=/n", "CNI_IFNAME=e", "CNI_ARGS=A=b=c", "X=1"}
	if _, err := x.ExecPlugin(t.Context(), "/opt/p", in, env); err != nil {
		t.Fatal(err)
	}
	want := []delegatetest.Call{{
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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"b": nil, "a": nil}}
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
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": delegatetest.Result(tt.result)}}
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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": delegatetest.HangOn("DEL", delegatetest.Result(nil))}}
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
		fault func(command string, p delegatetest.Plugin) delegatetest.Plugin
		did   bool // its work
		out   string
		code  uint // 0: none
		fails bool
	}{
		{"fail", func(c string, p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.FailOn(c, 107, "no", p)
		}, false, "", 107, true},
		{"kill", delegatetest.KillOn, true, "", 0, true},
		{"noise", func(c string, p delegatetest.Plugin) delegatetest.Plugin {
			return delegatetest.NoiseOn(c, "hello ", p)
		}, true, "hello " + conf, 0, false},
		{"garbage", delegatetest.GarbageOn, true, `{"cniVersion":`, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			did := 0
			base := func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
				did++
				return delegatetest.Result(nil)(ctx, c)
			}
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"one": tt.fault("ADD", base), "all": tt.fault("", base)}}
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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"p": delegatetest.GarbageOn("ADD", failing)}}
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
		x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"slow": delegatetest.SlowOn("ADD", time.Hour, delegatetest.Result(nil))}}
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
		Plugins: map[string]delegatetest.Plugin{"bridge": ok, "sriov": ok},
		Script: func(n int, _ delegatetest.Call, p delegatetest.Plugin) delegatetest.Plugin {
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
			iv := &delegate.Invoker{Exec: c.Exec, Env: c.Env, Path: []string{"/opt/cni/bin"}}
			n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"blue","type":"bridge"}`))
			if err != nil {
				return err
			}
			added, err := iv.Add(ctx, c.Attachment(n))
			if err != nil {
				return err
			}
			return added.PrintTo(c.Stdout, c.CNIVersion)
		},
	}
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
		"bridge": delegatetest.Result(&types100.Result{CNIVersion: "1.1.0"}),
	}}
	add := delegatetest.Call{
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

// echo is a plugin whose ADD prints its input, and whose other commands fail.
func echo(_ context.Context, _ invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs {
	fail := func(code uint, err error) func(*skel.CmdArgs) error {
		return func(*skel.CmdArgs) error {
			if code > 0 {
				err = fmt.Errorf("wrapped: %w", types.NewError(code, "msg", "details"))
			}
			return err
		}
	}
	return skel.CNIFuncs{
		Add: func(args *skel.CmdArgs) error {
			err := json.NewEncoder(stdout).Encode(map[string]any{"args": args, "stdin": string(args.StdinData), "environ": len(environ)})
			return err
		},
		Check: fail(107, nil), Del: fail(0, errors.New("plain")), Status: fail(50, nil),
	}
}

var echoVersions = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

// A skelCall is a call of echo as a process.
type skelCall struct {
	Env   []string
	Stdin string
}

// skelMain does for each skelCall on its stdin what a process would that has nothing else to
// do, and prints the Outcomes.
func skelMain() {
	calls, outcomes := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c skelCall
		if calls.Decode(&c) != nil {
			return
		}
		os.Clearenv()
		for _, kv := range c.Env {
			key, value, _ := strings.Cut(kv, "=")
			_ = os.Setenv(key, value)
		}
		stdin, in, _ := os.Pipe()
		out, stdout, _ := os.Pipe()
		os.Stdin, os.Stdout = stdin, stdout
		_, _ = in.WriteString(c.Stdin) // less than a pipe holds, as the output
		_ = in.Close()
		var o delegatetest.Outcome
		if err := skel.PluginMainFuncsWithError(echo(context.Background(), nil, os.Environ(), os.Stdout), echoVersions, ""); err != nil {
			o.Status = 1
			_ = err.Print()
		}
		_, _ = stdin.Close(), stdout.Close()
		o.Stdout, _ = io.ReadAll(out)
		_ = out.Close()
		_ = outcomes.Encode(o)
	}
}

// The same plugin runs in RunPlugin, and with skel in a process.
func TestRunPluginDoesWhatSkelDoes(t *testing.T) {
	t.Parallel()
	self := "/proc/self/ns/net"
	conf := func(v string) string { return fmt.Sprintf(`{"cniVersion":%q,"name":"n","type":"echo"}`, v) }
	env := func(command string, more ...string) []string {
		return append([]string{
			"CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=/absent", "CNI_IFNAME=eth0", "CNI_ARGS=A=b=c", "CNI_PATH=/a:/b",
		}, more...)
	}
	var tests []skelCall
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION", "UPDATE"} {
		for _, v := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "9.0.0", "x"} {
			tests = append(tests, skelCall{env(command), conf(v)})
		}
		for _, stdin := range []string{"", "{", "null", "{}", `{"name":"n"}`, `{"name":"a/b","cniVersion":"1.0.0"}`, `{"name":"n","cniVersion":5}`, conf("1.1.0") + " x"} {
			tests = append(tests, skelCall{env(command), stdin})
		}
		for _, v := range []string{"CONTAINERID=", "CONTAINERID=..", "CONTAINERID=a b", "NETNS=", "IFNAME=", "IFNAME=..", "IFNAME=a b", "IFNAME=0123456789abcdef", "ARGS=", "PATH="} {
			tests = append(tests, skelCall{env(command, "CNI_"+v), conf("1.1.0")})
		}
		tests = append(
			tests,
			skelCall{env(command, "CNI_CONTAINERID=", "CNI_PATH="), "{"},
			skelCall{env(command, "CNI_NETNS="+self), conf("1.1.0")},
			skelCall{env(command, "CNI_NETNS="+self, "CNI_NETNS_OVERRIDE=1"), conf("1.1.0")},
			skelCall{env(command, "CNI_NETNS="+self, "CNI_NETNS_OVERRIDE=tRue"), conf("1.1.0")},
			skelCall{env(command, "CNI_NETNS="+self, "CNI_NETNS_OVERRIDE=yes"), conf("1.1.0")},
		)
	}
	tests = append(tests, skelCall{nil, conf("1.1.0")}, skelCall{[]string{"CNI_PATH=/a"}, ""}, skelCall{[]string{"CNI_COMMAND=VERSION"}, ""})
	var calls, outcomes bytes.Buffer
	in := json.NewEncoder(&calls)
	for _, tt := range tests {
		nodetest.OK(t, in.Encode(tt))
	}
	cmd := exec.CommandContext(t.Context(), executable(t, "skel"))
	cmd.Stdin, cmd.Stdout = &calls, &outcomes
	nodetest.OK(t, cmd.Run())
	out := json.NewDecoder(&outcomes)
	for _, tt := range tests {
		var want delegatetest.Outcome
		nodetest.OK(t, out.Decode(&want))
		compareWithSkel(t, tt.Env, tt.Stdin, want)
	}
}

func compareWithSkel(t *testing.T, env []string, stdin string, want delegatetest.Outcome) {
	t.Helper()
	process := exec.Cmd{Env: append([]string{}, env...)} // which has a variable once
	like := callbacks(func(ctx context.Context, x invoke.Exec, _ []string, w io.Writer) skel.CNIFuncs {
		return echo(ctx, x, process.Environ(), w)
	}).plugin()
	like.Versions = echoVersions
	got := delegatetest.RunPlugin(t.Context(), like.Execute, nil, delegatetest.Call{Env: env, Stdin: []byte(stdin)})
	if got.Status != want.Status {
		t.Errorf("%q %s: status %d, with skel %d: %s", env, stdin, got.Status, want.Status, want.Stdout)
		return
	}
	if said := (*types.Error)(nil); errors.As(got.Err(), &said) && said.Code == types.ErrInvalidNetNS {
		// The namespace of this process: skel refuses it once an ADD is done.
		if all := printed(want.Stdout); len(all) == 0 || all[len(all)-1]["code"] != float64(said.Code) {
			t.Errorf("%q %s: printed %s, with skel %s", env, stdin, got.Stdout, want.Stdout)
		}
		return
	}
	if got.Status == 0 && !bytes.Equal(got.Stdout, want.Stdout) {
		t.Errorf("%q %s: printed %s, with skel %s", env, stdin, got.Stdout, want.Stdout)
	}
	if diff := cmp.Diff(printed(want.Stdout), printed(got.Stdout)); got.Status != 0 && diff != "" {
		t.Errorf("%q %s: printed (-skel +here):\n%s", env, stdin, diff)
	}
}

// printed returns the documents that a failed plugin printed, without the
// cniVersion of its error, which skel leaves out.
func printed(stdout []byte) (docs []map[string]any) {
	d := json.NewDecoder(bytes.NewReader(stdout))
	for {
		var doc map[string]any
		if d.Decode(&doc) != nil {
			break
		}
		docs = append(docs, doc)
	}
	if len(docs) > 0 {
		delete(docs[len(docs)-1], "cniVersion")
	}
	return docs
}

func TestRunPluginHidesTheEnvironmentOfTheProcess(t *testing.T) {
	t.Parallel()
	var seen []string
	p := plugin.Plugin{GC: func(_ context.Context, c *plugin.Call) error {
		seen = c.Env
		return nil
	}}
	c := delegatetest.Call{Command: "GC", Path: "/p", Env: []string{"X=1", "CNI_COMMAND=ADD", "CNI_ARGS=kept", "CNI_PATH=gone"}, Stdin: []byte(`{"cniVersion":"1.1.0","name":"n"}`)}
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
	x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}}
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
