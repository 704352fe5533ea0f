package conform_test

import (
	"bytes"
	"cmp"
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
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/conform"
	"github.com/metacni/metacni/delegate/plugin"
)

// A meta is a small meta-plugin, with flaws if a test asks for them. Like the
// plugins that Conform is for, it uses nothing of this module.
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
	CNIVersion, Name, Dir, File string
	First                       bool // the delegates are alternatives
	Delegates                   []json.RawMessage
	PrevResult                  json.RawMessage
	Valid                       []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// A metaRecord is what a meta remembers of an attachment.
type metaRecord struct{ Delegates, Results []json.RawMessage }

// metaStdin configures a meta.
func metaStdin(dir string) string {
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"type":"meta","dir":%q,"file":%q,"delegates":[{"type":"one"},{"type":"two","more":{"type":"else"}}]}`, dir, file)
}

// metaAlternatives configures a meta that attaches the first delegate that
// works.
func metaAlternatives(dir string) string {
	return fmt.Sprintf(`{"type":"meta","dir":%q,"first":true,"delegates":[{"type":"one"},{"type":"two"},{"type":"three"}]}`, dir)
}

// newMeta returns a meta with flaws.
func newMeta(flaws ...string) callbacks {
	return func(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs {
		command := func(do func(*meta) error) func(*skel.CmdArgs) error {
			return func(args *skel.CmdArgs) error {
				m := &meta{flaws: flaws, ctx: ctx, exec: exec, environ: environ, stdout: stdout, args: args}
				err := json.Unmarshal(args.StdinData, &m.conf)
				wrong := (*json.UnmarshalTypeError)(nil) // a part; the rest has been read
				if err != nil && (!errors.As(err, &wrong) || !slices.Contains(environ, "CNI_COMMAND=DEL") || m.has("needs all of its configuration")) {
					return err
				}
				if m.has("refuses keys given twice") && bytes.Count(args.StdinData, []byte(`"conform.example/twice"`)) > 1 {
					return errors.New("a key twice")
				}
				return do(m)
			}
		}
		return skel.CNIFuncs{Add: command((*meta).add), Check: command((*meta).check), Del: command((*meta).del), GC: command((*meta).gc), Status: command((*meta).status)}
	}
}

func (m *meta) has(flaw string) bool { return slices.Contains(m.flaws, flaw) }

// state returns the path of the record.
func (m *meta) state() string {
	if m.has("one state for all") {
		return filepath.Join(m.conf.Dir, "state")
	}
	return filepath.Join(m.conf.Dir, m.args.ContainerID+"@"+m.args.IfName)
}

func (m *meta) ifname(i int) string {
	if (i == 0 || m.conf.First) && !m.has("own names") {
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
	if m.has("deletes eth0") && command == "DEL" {
		m.args.IfName = "eth0"
	}
	if m.args.IfName != "" {
		env = append(env, "CNI_IFNAME="+m.ifname(i))
	}
	return env
}

func (m *meta) add() error {
	if _, err := os.Stat(m.state()); err == nil {
		return errors.New("attached already")
	}
	if m.has("knows one version") && m.conf.CNIVersion != "1.1.0" {
		return errors.New("another version")
	}
	if len(m.conf.Delegates) == 0 {
		switch {
		case m.has("has nothing to do"):
			return nil
		case m.has("panics with nothing to do"):
			panic("nothing to do")
		}
		return errors.New("no delegates")
	}
	if m.conf.First {
		return m.addFirst()
	}
	record := metaRecord{Delegates: m.conf.Delegates}
	for i := range m.conf.Delegates {
		out, err := m.run("ADD", i, nil)
		out, bad := m.result(out)
		if err == nil && bad != nil && m.has("forgets what printed garbage") {
			return bad
		}
		if said := (*types.Error)(nil); err != nil && !errors.As(err, &said) && m.has("forgets what was killed") {
			return err
		}
		if err = cmp.Or(err, bad); err != nil {
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
		record.Results = append(record.Results, out)
	}
	return m.done(record)
}

// addFirst attaches the first delegate that works.
func (m *meta) addFirst() error {
	var last error
	for i, d := range m.conf.Delegates {
		out, err := m.run("ADD", i, nil)
		out, bad := m.result(out)
		if last = cmp.Or(err, bad); last == nil {
			return m.done(metaRecord{[]json.RawMessage{d}, []json.RawMessage{out}})
		}
		if !m.has("undoes nothing") {
			_, _ = m.run("DEL", i, nil)
		}
		if m.has("gives up at once") {
			break
		}
	}
	if m.has("is never at a loss") {
		return m.print([]byte(`{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.1/24"}]}`))
	}
	return m.fail(last)
}

// done writes record and prints its first result.
func (m *meta) done(record metaRecord) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = os.WriteFile(m.state(), data, 0o600)
	}
	if err != nil {
		return err
	}
	return m.print(record.Results[0])
}

func (m *meta) fail(err error) error {
	if m.has("needs a success") && slices.Contains(m.environ, "CNI_COMMAND=ADD") {
		_ = os.WriteFile(m.state()+"-failed", nil, 0o600)
	}
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
	case m.has("prints two results"):
		result = append(result, result...)
	case m.has("prints an empty result"):
		result = fmt.Appendf(nil, `{"cniVersion":%q}`, m.conf.CNIVersion)
	case m.has("counts interfaces wrong"):
		result = bytes.Replace(result, []byte(`"interface":0`), []byte(`"interface":7`), 1)
	case m.has("prints its own version"):
		result = bytes.Replace(result, []byte(`"cniVersion":"1.1.0"`), []byte(`"cniVersion":"1.0.0"`), 1)
	}
	if m.conf.PrevResult != nil && !m.has("drops prevResult") && !m.has("prints an empty result") {
		result = m.chained(result)
	}
	_, err := m.stdout.Write(result)
	return err
}

// chained returns result behind prevResult.
func (m *meta) chained(result []byte) []byte {
	var all [2]*types100.Result
	for i, text := range [][]byte{m.conf.PrevResult, result} {
		r, err := create.CreateFromBytes(text)
		if err != nil {
			return result
		}
		if all[i], err = types100.NewResultFromResult(r); err != nil {
			return result
		}
	}
	prev, own := all[0], all[1]
	for _, ip := range own.IPs {
		if ip.Interface != nil && !m.has("mixes up interfaces") {
			*ip.Interface += len(prev.Interfaces)
		}
	}
	prev.IPs = append(prev.IPs, own.IPs...)
	if !m.has("drops interfaces of prevResult") {
		own.Interfaces = append(prev.Interfaces, own.Interfaces...)
	}
	prev.Interfaces = own.Interfaces
	if m.has("drops routes") {
		prev.Routes = nil
	}
	for _, ip := range prev.IPs {
		if m.has("drops gateways") {
			ip.Gateway = nil
		}
	}
	if m.has("drops the search list") {
		prev.DNS.Search = nil
	}
	if m.has("drops dns") {
		prev.DNS = types.DNS{}
	}
	r, err := prev.GetAsVersion(m.conf.CNIVersion)
	if err != nil {
		return result
	}
	var out bytes.Buffer
	_ = r.PrintTo(&out) // to memory
	return out.Bytes()
}

// recorded reads the record. From then on the delegates are those of the ADD. It
// returns their results.
func (m *meta) recorded() ([]json.RawMessage, error) {
	data, err := os.ReadFile(m.state())
	var record metaRecord
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err == nil && !m.has("remembers results only") {
		m.conf.Delegates = record.Delegates
	}
	return record.Results, err
}

func (m *meta) del() error {
	results, err := m.recorded()
	switch {
	case m.has("deletes nothing"):
		return nil
	case m.has("needs CNI_NETNS") && m.args.Netns == "", m.has("needs prevResult") && m.conf.PrevResult == nil, m.has("needs state") && err != nil:
		return errors.New("cannot delete")
	case m.has("needs the namespace") && m.args.Netns != "":
		if to, err := os.Readlink(m.args.Netns); err != nil || !strings.HasPrefix(to, "net:") {
			return errors.New("no namespace")
		}
	case m.has("needs an ADD") && err != nil && !m.there("-deleted"), m.has("needs a success") && m.there("-failed"):
		return errors.New("nothing to delete")
	case m.has("forgets first") && results == nil:
		return nil
	case m.has("forgets first"):
		_ = os.Remove(m.state())
	case m.has("needs its file"):
		if _, err := os.Stat(m.conf.File); err != nil {
			return err
		}
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
	if m.has("needs an ADD") {
		_ = os.WriteFile(m.state()+"-deleted", nil, 0o600)
	}
	return nil
}

// there reports whether the file of that name beside the state is there.
func (m *meta) there(suffix string) bool {
	_, err := os.Stat(m.state() + suffix)
	return err == nil
}

func (m *meta) check() error {
	results, err := m.recorded()
	if m.has("fails CHECK") {
		return errors.New("not well")
	}
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
	if m.has("fails GC") {
		return errors.New("not now")
	}
	if m.has("prints in GC") {
		fmt.Fprintln(m.stdout, "{}")
	}
	var errs []error
	for i := range m.conf.Delegates {
		valid := []types.GCAttachment{}
		for _, a := range m.conf.Valid {
			if i > 0 && !m.conf.First && !m.has("hands on attachments as they are") {
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
	if m.has("fails STATUS") {
		return errors.New("not ready")
	}
	for i := range m.conf.Delegates {
		if m.has("is always ready") {
			return nil
		}
		_, err := m.run("STATUS", i, nil)
		switch {
		case err != nil && m.conf.First && i+1 < len(m.conf.Delegates), m.has("ignores STATUS"):
		case err != nil:
			return err
		case m.conf.First:
			return nil
		}
	}
	return nil
}

// callbacks returns the callbacks of a plugin whose main is made with package
// skel.
type callbacks func(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs

// plugin runs the callbacks as skel does: it reports the first *types.Error of an
// error, and a missing callback does nothing.
func (f callbacks) plugin() plugin.Plugin {
	command := func(pick func(skel.CNIFuncs) func(*skel.CmdArgs) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			do := pick(f(ctx, c.System.Exec, c.System.Env, c.System.Stdout))
			if do == nil {
				return nil
			}
			err := do(c.CmdArgs())
			if said := (*types.Error)(nil); errors.As(err, &said) {
				return said
			}
			return err
		}
	}
	return plugin.Plugin{
		Add:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Add }),
		Check:  command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Check }),
		Del:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Del }),
		GC:     command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.GC }),
		Status: command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Status }),
	}
}

// program returns the callbacks for Test.
func (f callbacks) program() conform.Program { return f.plugin().Execute }

// wrong lists, for each flaw of a meta, the check that must fail.
var wrong = map[string]string{
	"": "",

	"undoes nothing":               "undo",
	"undoes only those before":     "undo",
	"attaches what it can":         "undo",
	"forgets what was killed":      "undo-killed",
	"forgets what printed garbage": "undo-garbage",
	"takes nothing for a result":   "undo-silence",
	"reads one document":           "undo-two-documents",

	"has nothing to do":         "add-broken",
	"panics with nothing to do": "add-broken",
	"refuses keys given twice":  "del-broken",
	"remembers results only":    "del-broken",
	"needs its file":            "del-broken",

	"needs all of its configuration": "del-broken",

	"prints noise":            "stdout",
	"prints nothing":          "stdout",
	"prints two results":      "stdout",
	"prints an empty result":  "result",
	"prints its own version":  "result",
	"counts interfaces wrong": "result",
	"knows one version":       "versions",

	"drops prevResult":               "chain",
	"drops interfaces of prevResult": "chain",
	"mixes up interfaces":            "chain",
	"drops routes":                   "chain",
	"drops dns":                      "chain",
	"drops gateways":                 "chain",
	"drops the search list":          "chain",

	"drops keys":        "request",
	"drops the name":    "request",
	"drops the version": "request",
	"decodes numbers":   "request",
	"own environment":   "environment",
	"own path":          "environment",
	"own names":         "environment",
	"drops CNI_ARGS":    "environment",
	"own codes":         "code",

	"deletes nothing":   "del",
	"needs CNI_NETNS":   "del-bare",
	"needs prevResult":  "del-bare",
	"needs state":       "del-again",
	"needs an ADD":      "del-unknown",
	"needs a success":   "del-failed",
	"forgets first":     "del-retry",
	"ignores DEL":       "del-error",
	"one state for all": "concurrent",
	"deletes eth0":      "names",

	"fails CHECK":                      "check-fresh",
	"checks nothing":                   "check",
	"checks without prevResult":        "check",
	"ignores CHECK":                    "check-error",
	"collects nothing":                 "gc",
	"prints in GC":                     "gc-quiet",
	"fails GC":                         "gc-quiet",
	"collects everything":              "gc-valid",
	"hands on attachments as they are": "gc-valid",
	"stops in GC":                      "gc-error",
	"ignores GC":                       "gc-error",
	"fails STATUS":                     "status-ready",
	"is always ready":                  "status",
	"ignores STATUS":                   "status-error",
}

// wrongAlternatives is the same for a meta that attaches the first delegate that
// works.
var wrongAlternatives = map[string]string{
	"":                   "",
	"gives up at once":   "", // the specification does not ask for more
	"undoes nothing":     "undo",
	"is never at a loss": "undo",
	"own codes":          "code",
	"is always ready":    "status",
	"ignores STATUS":     "status-error",
	"ignores DEL":        "del-error",
}

// A flatT is a TB without subtests, such as Ginkgo's, that records failures instead of
// failing.
type flatT struct {
	ctx                     context.Context
	name                    string
	failed, unmade, skipped *[]string // names
	said                    *[]string // with the reasons of what is not made
}

func (t flatT) Context() context.Context { return t.ctx }
func (flatT) Helper()                    {}

func (t flatT) Logf(format string, args ...any) {
	lines := strings.Split(fmt.Sprintf(format, args...), "\n")
	*t.said = append(*t.said, lines...)
	for _, line := range lines[1:] {
		name, _, _ := strings.Cut(line, ":")
		*t.unmade = append(*t.unmade, name)
	}
}

func (t flatT) Skip(why ...any) {
	*t.skipped = append(*t.skipped, t.name)
	*t.said = append(*t.said, fmt.Sprint(why...))
}

func (t flatT) Errorf(format string, args ...any) {
	*t.failed = append(*t.failed, t.name)
	*t.said = append(*t.said, fmt.Sprintf(format, args...))
}

// text is all that was said.
func (t flatT) text() string { return strings.Join(*t.said, "\n") }

// A recorder is a flatT with subtests.
type recorder struct{ flatT }

func newRecorder(ctx context.Context) recorder {
	return recorder{flatT{ctx: ctx, failed: new([]string), unmade: new([]string), skipped: new([]string), said: new([]string)}}
}

func (r recorder) Run(name string, f func(recorder)) bool {
	before := len(*r.failed)
	r.name = name
	f(r)
	return len(*r.failed) == before
}
