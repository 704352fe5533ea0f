package conform

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/conform/internal/realhost"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

const (
	// unknownKey is added to the configuration of each delegate.
	unknownKey   = "conform.example/unknown"
	unknownValue = `{"big":12345678901234567890,"list":[null,true,1.5,"é<>&"],"nested":{"a":{}}}`

	// args is the beginning of CNI_ARGS.
	args = "IgnoreUnknown=1;CONFORM=1"

	// handedOn is a variable of the plugin's environment.
	handedOnName = "CONFORM_HANDED_ON"
	handedOn     = handedOnName + "=a=b c"

	// failure is the error code of delegates that fail.
	failure = 107
)

// A bench is a host on which one plugin runs with its delegates.
type bench struct {
	*suite
	version string
	dir     string
	conf    map[string]any // the plugin's
	prev    types.Result   // prevResult that the configuration has, or nil
	files   []string       // that Stdin wrote
	twice   bool           // whether conf has a key twice
	marked  []string       // delegates whose configuration has the unknown key
	exec    *delegatetest.Exec
	served  served
	node    *realhost.Host // or nil
	private bool           // whether node is this bench's own
	idle    realhost.State // of node, when nothing is attached
	running *daemon        // or nil
	c1      *container     // of most checks

	mu         sync.Mutex // protects the following
	script     func(int, delegatetest.Invocation, delegatetest.Fake) delegatetest.Fake
	wrong      []int                 // indices of the calls that went wrong
	given      []net.IP              // addresses that delegates gave
	containers map[string]*container // by ID
	plugins    []int                 // process IDs
	delegates  [][]int               // process IDs of each one's ancestors
}

func (b *bench) start(ctx context.Context) error {
	text := b.suite.conf.Stdin(b.dir)
	if err := filepath.WalkDir(b.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			b.files = append(b.files, path)
		}
		return err
	}); err != nil {
		return err
	}
	if b.conf, _ = decode([]byte(text)).(map[string]any); b.conf == nil {
		return fmt.Errorf("the configuration %s is not a JSON object", text)
	}
	for k, v := range b.conf {
		b.conf[k] = rewrite(v, b.mark)
	}
	if prev, ok := b.conf["prevResult"]; ok {
		text, err := json.Marshal(prev)
		if err == nil {
			b.prev, err = create.CreateFromBytes(text)
		}
		if err != nil {
			return fmt.Errorf("the prevResult of the configuration: %w", err)
		}
		delete(b.conf, "prevResult")
	}
	b.exec = &delegatetest.Exec{Plugins: make(map[string]delegatetest.Fake), Script: func(n int, c delegatetest.Invocation, p delegatetest.Fake) delegatetest.Fake {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.script == nil {
			return p
		}
		return b.script(n, c, p)
	}}
	for i, typ := range b.types() {
		fake := b.suite.conf.Fakes[typ]
		if fake == nil {
			fake = attaching(address(i))
		}
		b.exec.Plugins[typ] = b.noting(fake)
	}
	var err error
	if b.suite.conf.NetNS {
		if err := b.place(ctx); err != nil {
			return err
		}
	}
	b.served, err = b.plugin.serve(ctx, b)
	if b.served.stop != nil {
		b.atEnd(b.served.stop)
	}
	if err == nil && b.node != nil {
		b.warm(ctx)
	}
	if err == nil {
		b.c1, err = b.container("c1")
	}
	return err
}

// mark adds the unknown key to v if that is the configuration of a delegate.
func (b *bench) mark(v any) any { //nolint:ireturn // any JSON value
	if conf, typ := b.delegate(v); conf != nil {
		conf[unknownKey] = json.RawMessage(unknownValue)
		b.marked = append(b.marked, typ)
	}
	return v
}

// delegate returns v and its type if it is the configuration of a delegate, and else nil.
func (b *bench) delegate(v any) (conf map[string]any, typ string) {
	conf, _ = v.(map[string]any)
	typ, _ = conf["type"].(string)
	if !slices.Contains(b.types(), typ) {
		return nil, ""
	}
	return conf, typ
}

// address returns the address that the i-th delegate gives.
func address(i int) net.IPNet {
	return net.IPNet{IP: net.IPv4(192, 0, 2, byte(i+1)).To4(), Mask: net.CIDRMask(24, 32)}
}

// attaching returns a plugin that gives an address. In a chain it prints the
// result of the plugin before it instead.
func attaching(ip net.IPNet) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		var conf struct {
			PrevResult map[string]any `json:"prevResult"`
		}
		if json.Unmarshal(c.Stdin, &conf) == nil && conf.PrevResult != nil {
			return delegatetest.Result(nil)(ctx, c)
		}
		return delegatetest.Result(&types100.Result{
			CNIVersion: "1.1.0",
			Interfaces: []*types100.Interface{{Name: c.IfName, Sandbox: c.NetNS}},
			IPs:        []*types100.IPConfig{{Interface: types100.Int(0), Address: ip}},
		})(ctx, c)
	}
}

// noting returns p, except that b notes the addresses that it gives.
func (b *bench) noting(p delegatetest.Fake) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		c.Stdin = b.versioned(c.Stdin)
		out, err := p(ctx, c)
		if c.Command != "ADD" || err != nil {
			return out, err
		}
		var ips []net.IP
		if r, err := create.CreateFromBytes(out); err == nil {
			if r, err := types100.NewResultFromResult(r); err == nil {
				for _, ip := range r.IPs {
					ips = append(ips, ip.Address.IP)
				}
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.given = append(b.given, ips...)
		return out, nil
	}
}

// versioned returns the configuration of a delegate with a cniVersion, so that only the check
// "request" finds that there was none.
func (b *bench) versioned(stdin []byte) []byte {
	var conf map[string]json.RawMessage
	if json.Unmarshal(stdin, &conf) != nil || conf["cniVersion"] != nil {
		return stdin
	}
	conf["cniVersion"], _ = json.Marshal(b.version) // a string always marshals
	text, _ := json.Marshal(conf)
	return text
}

// call runs the plugin. It completes c: the container is c1 and the interface
// eth0, unless c says otherwise.
func (b *bench) call(ctx context.Context, c delegatetest.Invocation) outcome {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(b.suite.conf.Timeout, time.Minute))
	defer cancel()
	c.Path, c.Args = b.served.path, b.args()
	c.Env = append(c.Env, handedOn)
	switch c.Command {
	case "ADD", "CHECK", "DEL":
		c.ContainerID = cmp.Or(c.ContainerID, "c1")
		in, err := b.container(c.ContainerID)
		if err != nil {
			return notCalled(err)
		}
		c.NetNS = given(c.NetNS, in.path)
		c.IfName = given(c.IfName, b.ifname)
		if c.Stdin == nil && c.Command == "ADD" {
			if c.Stdin, err = b.adding(in, c.IfName, nil); err != nil {
				return notCalled(fmt.Errorf("the prevResult: %w", err))
			}
		}
	}
	if c.Stdin == nil {
		c.Stdin = b.stdin(nil)
	}
	return b.served.run(ctx, c)
}

// notCalled is the outcome of a call that was not made.
func notCalled(err error) outcome {
	return outcome{Outcome: delegatetest.Outcome{Status: -1, Stderr: []byte(err.Error())}}
}

// adding returns the configuration for an ADD of the interface, with more keys.
func (b *bench) adding(in *container, ifname string, keys map[string]any) ([]byte, error) {
	prev, err := b.before(in, ifname)
	if err != nil || prev == nil {
		return b.stdin(keys), err
	}
	with := map[string]any{}
	with["prevResult"], err = prev.GetAsVersion(b.version)
	maps.Copy(with, keys)
	return b.stdin(with), err
}

// args returns CNI_ARGS.
func (s *suite) args() string {
	if s.conf.Args == "" {
		return args
	}
	return args + ";" + s.conf.Args
}

// given returns the value of a variable.
func given(value, otherwise string) string {
	switch value {
	case "":
		return otherwise
	case none:
		return ""
	}
	return value
}

// none, as the value of a variable, leaves the variable out.
const none = "-"

// stdin returns the plugin's configuration with more keys.
func (b *bench) stdin(keys map[string]any) []byte {
	conf := map[string]any{"name": "conform"}
	maps.Copy(conf, b.conf)
	conf["cniVersion"] = b.version
	maps.Copy(conf, keys)
	data, err := json.Marshal(conf)
	if err != nil {
		panic(err) // what was JSON still is
	}
	if b.twice {
		data = append([]byte(`{"conform.example/twice":1,"conform.example/twice":1,`), data[1:]...)
	}
	return data
}

// later returns a call of command after an ADD, as runtimes make it.
func (b *bench) later(command string, added outcome) delegatetest.Invocation {
	keys := make(map[string]any)
	switch command {
	case "CHECK", "DEL":
		if doc, err := printed.Document(added.Stdout); err == nil && added.Status == 0 && atLeast(b.version, "0.4.0") {
			keys["prevResult"] = doc
		}
	case "GC":
		keys["cni.dev/valid-attachments"] = []map[string]string{{"containerID": "c1", "ifname": b.ifname}}
	}
	return delegatetest.Invocation{Command: command, Stdin: b.stdin(keys)}
}

// fault makes the k-th of the coming calls of command go wrong, or each of them
// when k is every.
func (b *bench) fault(command string, k int, wrong func(command string, p delegatetest.Fake) delegatetest.Fake) {
	b.mu.Lock()
	defer b.mu.Unlock()
	count := 0
	b.script = func(n int, c delegatetest.Invocation, p delegatetest.Fake) delegatetest.Fake {
		if c.Command == command {
			if count++; count == k || k == every {
				b.wrong = append(b.wrong, n-1)
				return wrong("", p)
			}
		}
		return p
	}
}

// every, as an argument of fault, means each call.
const every = 0

// fatal returns which delegate must fail to make an ADD or a STATUS fail.
func (s *suite) fatal() int {
	if len(s.conf.Idle) > 0 {
		return every
	}
	return 1
}

// failing returns p, except that command fails with an error object.
func failing(command string, p delegatetest.Fake) delegatetest.Fake {
	return delegatetest.FailOn(command, failure, "the delegate fails", p)
}

// calls returns the calls of command.
func (b *bench) calls(command string) []delegatetest.Invocation {
	return slices.DeleteFunc(b.exec.Calls(), func(c delegatetest.Invocation) bool { return c.Command != command })
}

// ran fails unless every delegate ran for command.
func (b *bench) ran(command string) error {
	calls := b.calls(command)
	for _, typ := range b.suite.conf.Delegates {
		if !slices.ContainsFunc(calls, func(c delegatetest.Invocation) bool { return c.Plugin == typ }) {
			return fmt.Errorf("%s does not run the delegate %q, but %q", command, typ, b.exec.Trace())
		}
	}
	return nil
}

// empty fails if a delegate's attachment is left.
func (b *bench) empty(after string) error {
	if live := b.exec.Live(); len(live) > 0 {
		return fmt.Errorf("%s leaves behind %q: delegates ran as %q", after, live, b.exec.Trace())
	}
	return nil
}

// known returns the versions that VERSION printed and that this module knows,
// oldest first.
func known(o outcome) []string {
	info, err := new(version.PluginDecoder).Decode(o.Stdout)
	if err != nil {
		return nil
	}
	theirs := info.SupportedVersions()
	return slices.DeleteFunc(slices.Clone(version.All.SupportedVersions()), func(v string) bool { return !slices.Contains(theirs, v) })
}

func atLeast(v, since string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, since)
	return ok && err == nil
}

// decode returns the value of a JSON text, with numbers as they were written, or nil.
func decode(text []byte) (v any) { //nolint:ireturn // any JSON value
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}

// rewrite returns v with each value in it replaced by what f makes of it, the inner ones
// first.
func rewrite(v any, f func(any) any) any { //nolint:ireturn // any JSON value
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = rewrite(v[i], f)
		}
	case map[string]any:
		for k := range v {
			v[k] = rewrite(v[k], f)
		}
	}
	return f(v)
}

// number replaces a number by a string that equal numbers share.
func number(v any) any { //nolint:ireturn // any JSON value
	if n, ok := v.(json.Number); ok {
		if r, ok := new(big.Rat).SetString(n.String()); ok {
			return r.String()
		}
	}
	return v
}
