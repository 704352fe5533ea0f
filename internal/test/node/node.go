// Package nodetest is the harness of the tests: a node with a directory and fake plugins,
// and the checks that most tests need.
package nodetest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// A Node is where the plugin under test runs: a directory of the test, and the plugins
// that it can run. A test package embeds it and adds the plugin under test.
type Node struct {
	testing.TB
	Dir  string
	Exec *delegatetest.Exec

	seen int // calls that Trace has returned
}

// New returns a node with plugins of these types, which all succeed. The result of each
// has one interface, which is named like the type.
func New(tb testing.TB, plugins ...string) *Node {
	tb.Helper()
	return &Node{TB: tb, Dir: tb.TempDir(), Exec: &delegatetest.Exec{Plugins: Plugins(plugins...)}}
}

// Plugins are those of [New].
func Plugins(types ...string) map[string]delegatetest.Fake {
	all := make(map[string]delegatetest.Fake)
	for _, typ := range types {
		all[typ] = delegatetest.Result(&types100.Result{
			CNIVersion: types100.ImplementedSpecVersion,
			Interfaces: []*types100.Interface{{Name: typ, Mac: "02:00:00:00:00:01"}},
		})
	}
	return all
}

// Path is that of a name in the directory of the node.
func (n *Node) Path(name ...string) string { return filepath.Join(append([]string{n.Dir}, name...)...) }

// Write writes a file of the node, with its directories, and returns its path.
func (n *Node) Write(name, text string) string {
	n.Helper()
	path := n.Path(name)
	OK(n, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	return path
}

// Read returns the text of a file of the node.
func (n *Node) Read(name string) string {
	n.Helper()
	text, err := os.ReadFile(n.Path(name))
	OK(n, err)
	return string(text)
}

// Files are the paths below a directory of the node, sorted; none if it is not there.
func (n *Node) Files(dir string) []string {
	n.Helper()
	return Files(n, n.Path(dir))
}

// Files are the paths below a directory, sorted; none if it is not there.
func Files(tb testing.TB, root string) []string {
	tb.Helper()
	var all []string
	OK(tb, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if path == root || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		all = append(all, strings.TrimPrefix(path, root+"/"))
		return err
	}))
	return all
}

// Restarted makes the records in a directory of the node, of the containers named or of all, those
// of an earlier boot of the machine: their containers are dead.
func (n *Node) Restarted(dir string, containers ...string) {
	n.Helper()
	OK(n, Restarted(n.Path(dir), containers...))
}

// Restarted is [Node.Restarted], of the records in dir.
func Restarted(dir string, containers ...string) error {
	boot := regexp.MustCompile(`"boot":"[^"]*"`)
	files, err := filepath.Glob(filepath.Join(dir, "*@*@*.json"))
	for _, file := range files {
		container, _, _ := strings.Cut(filepath.Base(file), "@")
		if containers != nil && !slices.Contains(containers, container) {
			continue
		}
		before, readErr := os.ReadFile(file)
		if readErr != nil {
			return readErr
		}
		var text []byte
		for line := range strings.Lines(string(before)) {
			_, line, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ") // the sum is before it
			line = boot.ReplaceAllString(line, `"boot":"an earlier one"`)
			sum := sha256.Sum256([]byte(line))
			text = fmt.Appendf(text, "%x %s\n", sum[:8], line)
		}
		changed := filepath.Join(dir, ".restarted")
		err = errors.Join(err, os.WriteFile(changed, text, 0o600), os.Rename(changed, file)) // at once: somebody may read it
	}
	return err
}

// On calls before ahead of each call that begins with prefix ("ADD bridge"). If before
// fails, so does the call, and the plugin does not run.
func (n *Node) On(prefix string, before func(context.Context, delegatetest.Invocation) error) {
	for typ, p := range n.Exec.Plugins {
		n.Exec.Plugins[typ] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
			if strings.HasPrefix(c.String(), prefix) {
				if err := before(ctx, c); err != nil {
					return nil, err
				}
			}
			return p(ctx, c)
		}
	}
}

// FailOn lets each call that begins with prefix fail with a code.
func (n *Node) FailOn(prefix string, code uint) {
	n.On(prefix, func(context.Context, delegatetest.Invocation) error { return types.NewError(code, "no", "") })
}

// Gate holds up the one call that begins with prefix: it closes begun when the call
// begins, and the call goes on after open.
func (n *Node) Gate(prefix string) (begun <-chan struct{}, open func()) {
	in, out := make(chan struct{}), make(chan struct{})
	n.On(prefix, func(context.Context, delegatetest.Invocation) error {
		close(in)
		<-out
		return nil
	})
	return in, func() { close(out) }
}

// Since returns the calls since the last Trace.
func (n *Node) Since() []delegatetest.Invocation { return n.Exec.Calls()[n.seen:] }

// Trace returns the calls since the last Trace, as "ADD bridge eth0"; with the container
// if it is not c1.
func (n *Node) Trace() []string {
	var all []string
	for _, c := range n.Since() {
		line := c.String()
		if c.ContainerID != "" && c.ContainerID != "c1" {
			line += " of " + c.ContainerID
		}
		all = append(all, line)
	}
	n.seen += len(all)
	return all
}

// WantTrace wants these calls since the last Trace.
func (n *Node) WantTrace(want ...string) {
	n.Helper()
	Equal(n, "calls", n.Trace(), want)
}

// WantNothing wants no attachment of the fake plugins and no file below a directory.
func (n *Node) WantNothing(dir string) {
	n.Helper()
	Equal(n, "attachments", n.Exec.Live(), nil)
	Equal(n, "files", n.Files(dir), nil)
}

// Last returns the last call that begins with prefix.
func (n *Node) Last(prefix string) delegatetest.Invocation {
	n.Helper()
	for _, c := range slices.Backward(n.Exec.Calls()) {
		if strings.HasPrefix(c.String(), prefix) {
			return c
		}
	}
	n.Fatalf("no call begins with %q", prefix)
	panic("not reached")
}

// Stdin decodes the configuration that a call was given.
func Stdin(tb testing.TB, c delegatetest.Invocation) map[string]any {
	tb.Helper()
	var conf map[string]any
	OK(tb, json.Unmarshal(c.Stdin, &conf))
	return conf
}

// Network returns a network of CNI 1.1 with plugins of these types.
func Network(name string, plugins ...string) netconf.Network {
	list := make([]string, len(plugins))
	for i, typ := range plugins {
		list[i] = fmt.Sprintf(`{"type":%q}`, typ)
	}
	return Parse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, name, strings.Join(list, ",")))
}

// Parse parses a configuration that is right.
func Parse(conf string) netconf.Network {
	n, err := netconf.Parse([]byte(conf))
	if err != nil {
		panic(err)
	}
	return n
}

// OK ends the test if there is an error.
func OK(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Code wants an error with this CNI code; 0 wants none.
func Code(tb testing.TB, err error, code uint) {
	tb.Helper()
	if got := status.Code(err); got != code {
		tb.Errorf("code %d, want %d: %v", got, code, err)
	}
}

// Is wants an error that is the other, or wraps it.
func Is(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%v is not %v", err, want)
	}
}

// Says wants an error whose text has each of these words.
func Says(tb testing.TB, err error, words ...string) {
	tb.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			tb.Errorf("%v: does not say %q", err, w)
		}
	}
}

// Fails wants the runtime to receive an error with this CNI code and each of these words; 0
// wants none.
func Fails(tb testing.TB, err error, code uint, words ...string) {
	tb.Helper()
	Code(tb, err, code)
	if err != nil {
		Says(tb, status.Error(err), words...)
	}
}

// Equal compares what a test got with what it wants. An empty slice equals nil.
func Equal[T any](tb testing.TB, what string, got, want T, opts ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, append(opts, cmpopts.EquateEmpty())...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// patience is how long Come waits. A test that passes never waits for so long.
const patience = 2 * time.Minute

// Come returns the next value of c, or the zero value when c is closed. It ends the test
// when nothing comes.
func Come[T any](tb testing.TB, c <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		tb.Fatalf("%s did not come", what)
		panic("not reached")
	}
}

// JSONVariants returns text, valid JSON, with the value at each place replaced by
// values of every JSON type, and with each key of an object removed.
func JSONVariants(tb testing.TB, text string) (all []string) {
	tb.Helper()
	var root any
	OK(tb, json.Unmarshal([]byte(text), &root))
	keep := func() {
		variant, _ := json.Marshal(root) // decoded JSON can be encoded
		all = append(all, string(variant))
	}
	var visit func(v any, set func(any))
	visit = func(v any, set func(any)) {
		for _, other := range []any{
			nil, true, 7, -1.5, 1e300, "text", "",
			[]any{},
			[]any{nil},
			[]any{-1, 99, 0, 0},
			map[string]any{},
			map[string]any{"x": nil},
		} {
			set(other)
			keep()
		}
		set(v)
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				was := v[key]
				visit(was, func(other any) { v[key] = other })
				delete(v, key)
				keep()
				v[key] = was
			}
		case []any:
			for i := range v {
				visit(v[i], func(other any) { v[i] = other })
			}
		}
	}
	visit(root, func(other any) { root = other })
	return all
}
