package conform_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

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
	const here = "/proc/self/ns/net"
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
			skelCall{env(command, "CNI_NETNS="+here), conf("1.1.0")},
			skelCall{env(command, "CNI_NETNS="+here, "CNI_NETNS_OVERRIDE=1"), conf("1.1.0")},
			skelCall{env(command, "CNI_NETNS="+here, "CNI_NETNS_OVERRIDE=tRue"), conf("1.1.0")},
			skelCall{env(command, "CNI_NETNS="+here, "CNI_NETNS_OVERRIDE=yes"), conf("1.1.0")},
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
	got := delegatetest.RunPlugin(t.Context(), like.Execute, nil, delegatetest.Invocation{Env: env, Stdin: []byte(stdin)})
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
