package delegatetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A meta is a small meta-plugin, and with flaws a wrong one. It uses nothing of
// this module, as the plugins that Conform is for.
type meta struct {
	flaws   []string
	ctx     context.Context
	exec    invoke.Exec
	environ []string
	stdout  io.Writer
	args    *skel.CmdArgs
	conf    metaConf
}

type metaConf struct {
	CNIVersion, Name, Dir string
	Delegates             []json.RawMessage
	PrevResult            json.RawMessage
	Valid                 []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// metaStdin configures a meta.
func metaStdin(dir string) string {
	return fmt.Sprintf(`{"type":"meta","dir":%q,"delegates":[{"type":"one"},{"type":"two","more":{"type":"else"}}]}`, dir)
}

// newMeta is for a Program.
func newMeta(flaws ...string) func(context.Context, invoke.Exec, []string, io.Writer) skel.CNIFuncs {
	return func(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs {
		command := func(do func(*meta) error) func(*skel.CmdArgs) error {
			return func(args *skel.CmdArgs) error {
				m := &meta{flaws: flaws, ctx: ctx, exec: exec, environ: environ, stdout: stdout, args: args}
				if err := json.Unmarshal(args.StdinData, &m.conf); err != nil {
					return err
				}
				return do(m)
			}
		}
		return skel.CNIFuncs{Add: command((*meta).add), Check: command((*meta).check), Del: command((*meta).del), GC: command((*meta).gc), Status: command((*meta).status)}
	}
}

func (m *meta) has(flaw string) bool { return slices.Contains(m.flaws, flaw) }

// state is where the results of the delegates are.
func (m *meta) state() string {
	if m.has("one state for all") {
		return filepath.Join(m.conf.Dir, "state")
	}
	return filepath.Join(m.conf.Dir, m.args.ContainerID+"@"+m.args.IfName)
}

func (m *meta) ifname(i int) string {
	if i == 0 && !m.has("own names") {
		return m.args.IfName
	}
	return fmt.Sprint("net", i)
}

// run runs the i-th delegate.
func (m *meta) run(command string, i int, keys map[string]any) ([]byte, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(m.conf.Delegates[i], &conf); err != nil {
		return nil, err
	}
	var typ string
	if err := json.Unmarshal(conf["type"], &typ); err != nil {
		return nil, err
	}
	stdin := map[string]any{"name": m.conf.Name, "cniVersion": m.conf.CNIVersion, "type": typ}
	for k, v := range conf {
		if stdin[k] == nil && !m.has("drops keys") {
			stdin[k] = v
		}
	}
	maps.Copy(stdin, keys)
	if m.has("drops the name") {
		delete(stdin, "name")
	}
	if m.has("drops the version") && command == "DEL" {
		delete(stdin, "cniVersion")
	}
	data, err := json.Marshal(stdin)
	if m.has("decodes numbers") {
		var v any
		_ = json.Unmarshal(data, &v)
		data, err = json.Marshal(v)
	}
	if err != nil {
		return nil, err
	}
	path, err := m.exec.FindInPath(typ, filepath.SplitList(m.args.Path))
	if err != nil {
		return nil, err
	}
	return m.exec.ExecPlugin(m.ctx, path, data, m.environment(command, i))
}

func (m *meta) environment(command string, i int) []string {
	var env []string
	for _, kv := range m.environ {
		key, _, _ := strings.Cut(kv, "=")
		switch {
		case key == "CNI_COMMAND" || key == "CNI_IFNAME":
		case !strings.HasPrefix(key, "CNI_") && m.has("own environment"):
		case key == "CNI_ARGS" && m.has("drops CNI_ARGS"):
		case key == "CNI_PATH" && m.has("own path"):
			env = append(env, "CNI_PATH=/opt/cni/bin")
		default:
			env = append(env, kv)
		}
	}
	env = append(env, "CNI_COMMAND="+command)
	if m.args.IfName != "" {
		env = append(env, "CNI_IFNAME="+m.ifname(i))
	}
	return env
}

func (m *meta) add() error {
	if _, err := os.Stat(m.state()); err == nil {
		return errors.New("attached already")
	}
	var results []json.RawMessage
	for i := range m.conf.Delegates {
		out, err := m.run("ADD", i, nil)
		out, bad := m.result(out)
		if err == nil && bad != nil && m.has("forgets what printed garbage") {
			return bad
		}
		if err = cmpErr(err, bad); err != nil {
			if i > 0 && m.has("attaches what it can") {
				continue
			}
			if m.has("undoes only those before") {
				i--
			}
			for ; i >= 0 && !m.has("undoes nothing"); i-- {
				_, _ = m.run("DEL", i, nil)
			}
			return m.fail(err)
		}
		results = append(results, out)
	}
	data, err := json.Marshal(results)
	if err == nil {
		err = os.WriteFile(m.state(), data, 0o600)
	}
	if err != nil {
		return err
	}
	return m.print(results[0])
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *meta) fail(err error) error {
	if m.has("own codes") {
		return types.NewError(7, err.Error(), "")
	}
	return err
}

func (m *meta) result(out []byte) ([]byte, error) {
	if len(out) == 0 && m.has("takes nothing for a result") {
		return []byte(`{"cniVersion":"1.0.0"}`), nil
	}
	if m.has("reads one document") {
		var doc json.RawMessage
		if err := json.NewDecoder(bytes.NewReader(out)).Decode(&doc); err != nil {
			return nil, err
		}
		out = doc
	}
	_, err := create.CreateFromBytes(out)
	return out, err
}

func (m *meta) print(result []byte) error {
	switch {
	case m.has("prints noise"):
		result = append([]byte("attached\n"), result...)
	case m.has("prints nothing"):
		return nil
	case m.has("prints an empty result"):
		result = fmt.Appendf(nil, `{"cniVersion":%q}`, m.conf.CNIVersion)
	case m.has("prints two results"):
		result = append(result, result...)
	case m.has("prints its own version"):
		result = bytes.Replace(result, []byte(`"cniVersion":"1.1.0"`), []byte(`"cniVersion":"1.0.0"`), 1)
	}
	_, err := m.stdout.Write(result)
	return err
}

func (m *meta) results() (results []json.RawMessage, err error) {
	data, err := os.ReadFile(m.state())
	if err == nil {
		err = json.Unmarshal(data, &results)
	}
	return results, err
}

func (m *meta) del() error {
	results, err := m.results()
	switch {
	case m.has("deletes nothing"):
		return nil
	case m.has("needs CNI_NETNS") && m.args.Netns == "", m.has("needs prevResult") && m.conf.PrevResult == nil, m.has("needs state") && err != nil:
		return errors.New("cannot delete")
	case m.has("forgets first") && results == nil:
		return nil
	case m.has("forgets first"):
		_ = os.Remove(m.state())
	}
	var errs []error
	for i := range slices.Backward(m.conf.Delegates) {
		keys := map[string]any{}
		if i < len(results) {
			keys["prevResult"] = results[i]
		}
		_, err := m.run("DEL", i, keys)
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	if err != nil && !m.has("ignores DEL") {
		return m.fail(err)
	}
	_ = os.Remove(m.state())
	return nil
}

func (m *meta) check() error {
	results, err := m.results()
	if err != nil || m.has("checks nothing") {
		return err
	}
	for i := range m.conf.Delegates {
		keys := map[string]any{"prevResult": results[i]}
		if m.has("checks without prevResult") {
			keys = nil
		}
		if _, err := m.run("CHECK", i, keys); err != nil && !m.has("ignores CHECK") {
			return m.fail(err)
		}
	}
	return nil
}

func (m *meta) gc() error {
	if m.has("collects nothing") {
		return nil
	}
	if m.has("prints in GC") {
		fmt.Fprintln(m.stdout, "{}")
	}
	var errs []error
	for i := range m.conf.Delegates {
		valid := []types.GCAttachment{}
		for _, a := range m.conf.Valid {
			if i > 0 && !m.has("hands on attachments as they are") {
				a.IfName = m.ifname(i)
			}
			valid = append(valid, a)
		}
		if m.has("collects everything") {
			m.args.ContainerID, m.args.IfName = "c1", "eth0"
			m.environ = append(m.environ, "CNI_CONTAINERID=c1")
			_, _ = m.run("DEL", i, nil)
			m.args.IfName = ""
		}
		_, err := m.run("GC", i, map[string]any{"cni.dev/valid-attachments": valid})
		errs = append(errs, err)
		if err != nil && m.has("stops in GC") {
			return err
		}
	}
	if m.has("ignores GC") {
		return nil
	}
	return errors.Join(errs...)
}

func (m *meta) status() error {
	for i := range m.conf.Delegates {
		if m.has("is always ready") {
			return nil
		}
		if _, err := m.run("STATUS", i, nil); err != nil && !m.has("ignores STATUS") {
			return err
		}
	}
	return nil
}

var anyUndo = []string{"undo", "undo-killed", "undo-garbage", "undo-silence", "undo-two-documents"}

// wrong lists, for each flaw of a meta, the checks that must fail.
var wrong = map[string][]string{
	"": nil,

	"undoes nothing":               anyUndo,
	"undoes only those before":     anyUndo,
	"attaches what it can":         anyUndo,
	"forgets what printed garbage": {"undo-garbage", "undo-silence", "undo-two-documents"},
	"takes nothing for a result":   {"undo-silence"},
	"reads one document":           {"undo-two-documents"},

	"prints noise":           {"stdout", "result", "versions"},
	"prints nothing":         {"stdout", "result", "versions"},
	"prints two results":     {"stdout", "result", "versions"},
	"prints an empty result": {"result", "versions"},
	"prints its own version": {"result", "versions"},

	"drops keys":        {"request"},
	"drops the name":    {"request"},
	"drops the version": {"request"},
	"decodes numbers":   {"request"},
	"own environment":   {"environment"},
	"own path":          {"environment"},
	"own names":         {"environment", "gc-valid"},
	"drops CNI_ARGS":    {"environment"},
	"own codes":         {"code"},

	"deletes nothing":   {"versions", "del", "del-bare", "del-error", "del-retry", "concurrent"},
	"needs CNI_NETNS":   {"del-bare"},
	"needs prevResult":  {"versions", "del-unknown", "del-failed", "del-bare", "concurrent"},
	"needs state":       {"del-again", "del-unknown", "del-failed"},
	"forgets first":     {"del-retry"},
	"ignores DEL":       {"del-error"},
	"one state for all": {"concurrent"},

	"checks nothing":                   {"check", "check-error"},
	"checks without prevResult":        {"check"},
	"ignores CHECK":                    {"check-error"},
	"collects nothing":                 {"gc", "gc-error"},
	"prints in GC":                     {"gc"},
	"collects everything":              {"gc-valid"},
	"hands on attachments as they are": {"gc-valid"},
	"stops in GC":                      {"gc-error"},
	"ignores GC":                       {"gc-error"},
	"is always ready":                  {"status", "status-error"},
	"ignores STATUS":                   {"status-error"},
}

// A recorder is a TB that fails in silence.
type recorder struct {
	ctx             context.Context
	name            string
	failed, skipped *[]string
	said            *[]string
}

func newRecorder(ctx context.Context) *recorder {
	return &recorder{ctx: ctx, failed: new([]string), skipped: new([]string), said: new([]string)}
}

func (r *recorder) Context() context.Context { return r.ctx }
func (*recorder) Helper()                    {}
func (r *recorder) Skip(...any)              { *r.skipped = append(*r.skipped, r.name) }

func (r *recorder) Errorf(format string, args ...any) {
	*r.failed = append(*r.failed, r.name)
	*r.said = append(*r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Run(name string, f func(*recorder)) bool {
	before := len(*r.failed)
	below := *r
	below.name = name
	f(&below)
	return len(*r.failed) == before
}

var _ delegatetest.TB[*recorder] = (*recorder)(nil)
