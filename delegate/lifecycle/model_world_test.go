package lifecycle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// death is what the model panics with where a process dies. In the world its
// goroutine ends.
type death struct{}

// describe puts in words what an operation has come to.
func describe(answer string, trace, live, stored []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "answer %s\n", answer)
	for _, s := range trace {
		fmt.Fprintf(&b, "call %s\n", s)
	}
	fmt.Fprintf(&b, "alive %q\n", live)
	for _, s := range stored {
		fmt.Fprintf(&b, "record %s\n", s)
	}
	return b.String()
}

func describeRecord(k scratch.Key, st scratch.State, ls []piece) string {
	return fmt.Sprintf("%s %s: %v", k, st, ls)
}

// A world is a node: a directory, plugins, and one process after another.
type world struct {
	t     testing.TB
	dir   string
	exec  *delegatetest.Exec
	m     *Manager
	gone  map[string]bool
	tries int

	namespaces int // made so far

	parallel int    // attachments at once
	liar     string // this plugin's DEL fails, unknown to the model

	forgotten func() []piece  // what the record was about that is forgotten
	damaged   map[string]bool // containers with a record that was damaged

	mu     sync.Mutex // guards what follows
	plot   plot
	end    context.CancelFunc // ends the context of the operation
	after  bool               // the process dies when the call has ended
	trace  []string
	wrong  []string
	passed chan error // from the Del that has overtaken
	key    scratch.Key
}

func newWorld(t testing.TB, dir string) *world {
	t.Helper()
	w := &world{t: t, dir: dir, gone: make(map[string]bool), damaged: make(map[string]bool), exec: &delegatetest.Exec{Plugins: plugins()}}
	for name, p := range w.exec.Plugins {
		w.exec.Plugins[name] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) { return w.plugin(ctx, c, p) }
	}
	err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(dir+"-ns", 0o700), os.Mkdir(dir+"-files", 0o700)) // so that there is always a lock to be waited for
	for _, k := range modelKeys() {
		err = errors.Join(err, w.makeNamespace(k.ContainerID))
	}
	if err != nil {
		t.Error(err)
	}
	w.start()
	return w
}

// start is a new process.
func (w *world) start() {
	w.m = &Manager{Dir: w.dir, Invoker: &delegate.Invoker{Exec: worldExec{w.exec, w}, Parallel: w.parallel}, DelTries: w.tries}
	w.m.InterfaceNames = func(netns string) (names []string, _ error) {
		if exists(netns) {
			names = []string{"lo"} // the plugins make none
		}
		return names, nil
	}
}

// worldExec is where the world looks over the shoulder of a Manager.
type worldExec struct {
	*delegatetest.Exec
	w *world
}

func (e worldExec) FindInPath(plugin string, paths []string) (string, error) {
	e.w.mu.Lock()
	f := e.w.plot.at("find " + plugin)
	e.w.mu.Unlock()
	if f.kind == "crash" {
		runtime.Goexit()
	}
	if e.w.gone[plugin] {
		return "", errors.New("vanished")
	}
	return e.Exec.FindInPath(plugin, paths)
}

func (e worldExec) ExecPlugin(ctx context.Context, pluginPath string, stdin []byte, environ []string) ([]byte, error) {
	out, err := e.Exec.ExecPlugin(ctx, pluginPath, stdin, environ)
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.w.after {
		e.w.after = false
		runtime.Goexit()
	}
	return out, err
}

// The contexts of an overtaking Del and of what the operator does have these.
type (
	quiet  struct{}
	byHand struct{}
)

// plugin is any of the fakes, with what goes wrong with it.
func (w *world) plugin(ctx context.Context, c delegatetest.Call, p delegatetest.Plugin) ([]byte, error) {
	if ctx.Value(byHand{}) != nil {
		return p(ctx, c)
	}
	var f fault
	w.mu.Lock()
	w.saw(c)
	if ctx.Value(quiet{}) == nil {
		f = w.plot.at(c.Command + " " + path.Base(c.Plugin))
	}
	w.after = f.kind == "crash-after"
	w.mu.Unlock()
	if c.Command == "DEL" && c.Plugin == w.liar {
		return nil, errors.New("unknown to the model")
	}
	switch f.kind {
	case "overtake":
		return nil, w.overtake(ctx)
	case "noise":
		return []byte("loading modules\n{"), nil
	case "silence":
		return nil, nil
	}
	if err := w.goesWrong(ctx, f); err != nil {
		return nil, err
	}
	return p(ctx, c)
}

// goesWrong does what f says, which is the same for plugins and others.
func (w *world) goesWrong(ctx context.Context, f fault) error {
	switch f.kind {
	case "error":
		return types.NewError(f.code(), "no", "")
	case "plain":
		return errors.New("no")
	case "crash":
		runtime.Goexit()
	case "cancel", "hang":
		w.end()
	}
	if f.kind != "hang" {
		return nil
	}
	if ctx.Err() == nil { // it undoes, and would hang until its time is up
		return types.NewError(f.code(), "no", "")
	}
	<-ctx.Done()
	return fmt.Errorf("hung: %w", context.Cause(ctx))
}

// saw notes a call, and that it was made under the container's lock.
func (w *world) saw(c delegatetest.Call) {
	line := strings.Join([]string{c.Command, c.Plugin, c.ContainerID, c.IfName}, " ")
	if c.Command == "DEL" {
		var conf struct {
			PrevResult *types100.Result `json:"prevResult"`
		}
		if err := json.Unmarshal(c.Stdin, &conf); err != nil {
			w.wrong = append(w.wrong, err.Error())
		}
		if conf.PrevResult != nil {
			line += " after " + conf.PrevResult.Interfaces[0].Name
		}
		if c.NetNS == "" {
			line += " without a namespace"
		}
	}
	if c.Command == "GC" {
		var conf struct {
			Name  string               `json:"name"`
			Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
		}
		if err := json.Unmarshal(c.Stdin, &conf); err != nil {
			w.wrong = append(w.wrong, err.Error())
		}
		var names []string
		for _, a := range conf.Valid {
			names = append(names, a.ContainerID+"/"+a.IfName)
		}
		line = fmt.Sprint("GC ", c.Plugin, " ", conf.Name, " ", names)
	} else if !lockIsHeld(filepath.Join(w.dir, c.ContainerID+"@lock")) {
		w.wrong = append(w.wrong, line+" without the lock")
	}
	w.trace = append(w.trace, line)
}

// overtake is a Del that comes in while the operation runs, and ends it.
func (w *world) overtake(ctx context.Context) error {
	background, m, k := context.WithValue(w.t.Context(), quiet{}, true), w.m, w.key
	passed := make(chan error, 1)
	go func() { passed <- m.Del(background, Removal{Key: k}) }()
	w.passed = passed
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case <-ctx.Done():
	case <-limit.C:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wrong = append(w.wrong, "the Del does not end it")
	}
	return errors.New("signal: killed")
}

// do does o and says what has come of it.
func (w *world) do(o op) string {
	ctx, end := context.WithCancel(w.t.Context())
	defer end()
	w.mu.Lock()
	w.plot, w.end, w.trace, w.after, w.passed, w.key = newPlot(o), end, nil, false, nil, o.key
	if w.plot.at("start").kind != "" {
		end()
	}
	w.mu.Unlock()
	answer, undoError := w.answer(ctx, o)
	if w.passed != nil {
		answer += fmt.Sprintf(" overtaken by %d", status.Code(<-w.passed))
	}
	if undoError {
		answer += " and not undone"
	}
	for _, s := range w.wrong {
		answer += "; " + s
	}
	answer += w.files()
	return describe(answer, w.trace, w.exec.Live(), w.stored())
}

func (w *world) answer(ctx context.Context, o op) (answer string, undoError bool) {
	died := make(chan bool)
	go func() {
		alive := false
		defer func() { died <- !alive }()
		answer, undoError = w.answerAlive(ctx, o)
		alive = true
	}()
	if <-died {
		w.start()
		return "died", false
	}
	return answer, undoError
}

func (w *world) answerAlive(ctx context.Context, o op) (answer string, undoError bool) {
	err := w.verb(ctx, o)
	var left *delegate.UndoError
	return fmt.Sprint(status.Code(err)), errors.As(err, &left)
}

func (w *world) verb(ctx context.Context, o op) error {
	switch o.verb {
	case "add":
		_, err := w.m.Add(ctx, o.key, w.transaction(ctx, o))
		return err
	case "attach":
		_, err := w.m.Attach(ctx, o.key, w.transaction(ctx, o))
		return err
	case "del":
		return w.m.Del(ctx, Removal{Key: o.key})
	case "check":
		return w.m.Check(ctx, o.key)
	case "detach":
		return w.m.Detach(ctx, o.key, o.ifname)
	case "gc":
		return w.gc(ctx, o)
	case "reconcile":
		return w.reconcile(ctx, o)
	case "sweep":
		return w.sweep(ctx, o.key)
	case "vanish":
		w.gone[o.plugin] = true
	case "return":
		clear(w.gone)
	case "reuse":
		return w.makeNamespace(o.key.ContainerID)
	case "tries":
		w.tries = o.shape
		w.start()
	case "break":
		w.liar = o.plugin
	case "damage", "tear":
		w.damaged[o.key.ContainerID] = true
		return w.damage(o)
	case "forget":
		return w.forget(ctx, o.key)
	}
	return nil
}

func (w *world) transaction(ctx context.Context, o op) Transaction {
	own := func(ctx context.Context, place string) (fault, error) {
		w.mu.Lock()
		f := w.plot.at(place)
		w.mu.Unlock()
		return f, w.goesWrong(ctx, f)
	}
	attachments := func(plan []piece) (as []delegate.Attachment) {
		for _, l := range plan {
			a := attachment(nodetest.Network(l.network, l.plugins...), o.key.ContainerID, l.ifname)
			a.NetNS = w.namespace(o.key.ContainerID)
			as = append(as, w.withFile(a))
		}
		return as
	}
	asked := 0
	tx := Transaction{
		NetNS: w.namespace(o.key.ContainerID),
		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
			w.trace = append(w.trace, planTrace(taken))
			_, err := own(ctx, "plan")
			return attachments(o.plan()), err
		},
		Prepare: w.prepare,
		Next: func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
			w.trace = append(w.trace, "next")
			if failed == nil {
				w.wrong = append(w.wrong, "next of nothing that has failed")
			}
			asked++
			_, err := own(ctx, "next")
			return attachments(o.alternative(asked - 1)), err
		},
		Adjust: func(ctx context.Context, added []delegate.Attached) error {
			f, err := own(ctx, "adjust")
			if f.kind == "spoil" {
				added[0].Result = nil
			}
			return err
		},
		Report: func(context.Context, []delegate.Attached) error {
			_, err := own(ctx, "report")
			return err
		},
	}
	if o.bare {
		tx.Adjust = nil
	}
	return tx
}

func (w *world) gc(ctx context.Context, o op) error {
	var nets []netconf.Network
	if o.nets {
		nets = append(nets, nodetest.Network(gcNet.network, gcNet.plugins...))
	}
	valid := validFor(o.valid...)
	if w.plot.at("nil").kind != "" {
		valid = nil
	}
	return w.m.GC(ctx, Collection{Network: o.key.Network, Valid: valid, Networks: nets})
}

// planTrace is what the trace says of a plan with these names taken.
func planTrace(taken []string) string {
	return fmt.Sprint("plan ", slices.DeleteFunc(taken, func(name string) bool { return name == "lo" }))
}

// stored says what is recorded.
func (w *world) stored() []string {
	var all []string
	for r, err := range w.m.store().List(w.t.Context()) {
		switch {
		case errors.Is(err, scratch.ErrCorrupt):
			all = append(all, fmt.Sprint(r.Key, " damaged"))
			continue
		case err != nil:
			all = append(all, err.Error())
			continue
		}
		var ls []piece
		for _, e := range r.Value.Delegates {
			ls = append(ls, pieceOf(e))
		}
		all = append(all, describeRecord(r.Key, r.State, ls))
	}
	slices.Sort(all)
	return all
}

func pieceOf(e entry) piece {
	l := piece{network: e.Network.Name(), ifname: e.IfName, half: e.Half}
	for i, p := range e.Network.Plugins() {
		l.plugins = append(l.plugins, p.Type())
		if slices.Contains(e.Gone, i) {
			l.gone = append(l.gone, p.Type())
		}
	}
	var result types100.Result
	if json.Unmarshal(e.Result, &result) == nil {
		l.result = result.Interfaces[0].Name
	}
	return l
}

// damage damages the file of a record, if there is one.
func (w *world) damage(o op) error {
	name := filepath.Join(w.dir, o.key.ContainerID+"@"+o.key.Network+"@"+o.key.IfName+".json")
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.verb == "damage" {
		return os.WriteFile(name, [][]byte{nil, []byte("{}"), []byte("0123456789abcdef {}\n"), data[:1], []byte("null\n")}[o.shape], 0o600)
	}
	// A file that was another's ends in empty lines.
	for data = bytes.TrimRight(data, "\n"); !goodEnd(data); data = bytes.TrimRight(data, "\n") {
		end := bytes.LastIndexByte(data, '\n')
		if end < 0 {
			return nil // it is damaged already
		}
		data = data[:end]
	}
	middle := (len(data) + bytes.LastIndexByte(data, '\n')) / 2
	if o.shape%2 == 0 {
		return os.WriteFile(name, data[:middle], 0o600)
	}
	data[middle] ^= 0x04
	return os.WriteFile(name, data, 0o600)
}

// goodEnd reports whether the last line of a record file counts.
func goodEnd(data []byte) bool {
	sum, text, _ := bytes.Cut(data[bytes.LastIndexByte(data, '\n')+1:], []byte(" "))
	want := sha256.Sum256(text)
	return string(sum) == hex.EncodeToString(want[:8])
}

// forget is an operator who knows what the damaged record was about.
func (w *world) forget(ctx context.Context, k scratch.Key) error {
	if _, err := w.m.store().Get(k); !errors.Is(err, scratch.ErrCorrupt) {
		return nil // nothing for the operator to do
	}
	for _, l := range w.forgotten() {
		for _, p := range l.plugins {
			env := []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + k.ContainerID, "CNI_IFNAME=" + l.ifname}
			if _, err := w.exec.ExecPlugin(context.WithValue(ctx, byHand{}, true), "/"+p, nil, env); err != nil {
				return err
			}
		}
	}
	return (&node{Manager: w.m, Node: &nodetest.Node{TB: w.t}}).forget(k)
}

// withFile returns a with a file, see [world.prepare].
func (w *world) withFile(a delegate.Attachment) delegate.Attachment {
	a.Files = []string{filepath.Join(w.dir+"-files", a.ContainerID+"@"+a.IfName)}
	return a
}

// prepare makes the files of a plan.
func (w *world) prepare(ctx context.Context, plan []delegate.Attachment) error {
	for _, a := range plan {
		rs, _ := w.m.store().Container(ctx, a.ContainerID) // which cannot be read is in damaged
		leftovers := slices.ContainsFunc(rs, func(r scratch.Record[record]) bool { return r.State == scratch.Leftover || r.Value.Leftovers != nil })
		if !leftovers && !w.damaged[a.ContainerID] && exists(a.Files[0]) {
			return errors.New("the file of what was there before is left")
		}
		f, err := os.Create(a.Files[0])
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// files says which files are there without a record, and which attachment has lost its
// own. Nothing is said of containers with a record that was damaged.
func (w *world) files() (wrong string) {
	recorded := make(map[string]bool)
	for r, err := range w.m.store().List(w.t.Context()) {
		if err != nil || w.damaged[r.Key.ContainerID] {
			continue
		}
		for _, e := range slices.Concat(r.Value.Delegates, r.Value.Leftovers) {
			recorded[filepath.Base(e.Files[0])] = true
		}
		for _, e := range r.Value.Delegates {
			if r.State == scratch.Added && !exists(e.Files[0]) {
				wrong += fmt.Sprintf("; %s has no file", e.IfName)
			}
		}
	}
	names, err := os.ReadDir(w.dir + "-files")
	if err != nil {
		return "; " + err.Error()
	}
	for _, name := range names {
		container, _, _ := strings.Cut(name.Name(), "@")
		if !recorded[name.Name()] && !w.damaged[container] {
			wrong += "; no record has the file " + name.Name()
		}
	}
	return wrong
}

// sweep removes one attachment as a Sweeper does.
func (w *world) sweep(ctx context.Context, k scratch.Key) error {
	_, err := (&Sweeper{Manager: w.m}).remove(ctx, k, errand{})
	return err
}

func (m *model) sweep(k scratch.Key) codes {
	r, cs := m.recorded(k)
	if r == nil {
		return cs
	}
	now := r.now()
	there := m.there(k, now.pieces)
	switch {
	case now.state == scratch.Added && there:
		return nil
	case now.state == scratch.Partial && there:
		_, cs := m.drop(k, now, func(l piece) bool { return l.half })
		return cs
	}
	cs, _ = m.remove(k)
	return cs
}

// namespace is the path of a container's network namespace, as it were: a file.
func (w *world) namespace(container string) string { return filepath.Join(w.dir+"-ns", container) }

// makeNamespace makes another one at the path. What was there is kept, so that
// no other has its inode.
func (w *world) makeNamespace(container string) error {
	path := w.namespace(container)
	w.namespaces++
	if err := os.Rename(path, fmt.Sprint(path, "-", w.namespaces)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// reconcile makes one change after the other, detaching first, and tries each once.
func (m *model) reconcile(o op) (all codes) {
	k := o.key
	stuck, failed := make(map[string]bool), make(map[int]bool)
	for {
		now, cs := m.added(k)
		if cs != nil {
			return append(all, cs...)
		}
		if !m.there(k, now.pieces) {
			return append(all, 7)
		}
		there := func(w op, l piece) bool {
			return !l.half && l.ifname == w.plan()[0].ifname && l.network == w.plan()[0].network
		}
		change := false
		for _, l := range slices.Backward(now.pieces) {
			keep := slices.ContainsFunc(o.wanted(), func(w op) bool { return there(w, l) })
			if change = (l.half || reconciledName(l.ifname)) && !keep && !stuck[l.ifname]; change {
				_, cs := m.drop(k, now, func(other piece) bool { return other.ifname == l.ifname })
				stuck[l.ifname] = cs != nil
				all = append(all, cs...)
				break
			}
		}
		if change {
			continue
		}
		missing := slices.IndexFunc(o.wanted(), func(w op) bool {
			return !failed[w.shape] && !slices.ContainsFunc(now.pieces, func(l piece) bool { return there(w, l) })
		})
		if missing < 0 {
			return all
		}
		w, before := o.wanted()[missing], m.undoError
		m.undoError = false
		cs = m.transaction(w, now.pieces, scratch.Partial, func() { m.note(k, now.state, now.pieces) })
		failed[w.shape] = cs != nil
		m.undoError = m.undoError || before
		all = append(all, cs...)
	}
}

func (w *world) reconcile(ctx context.Context, o op) error {
	_, err := w.m.Reconcile(ctx, o.key, Reconciliation{
		Prepare: w.prepare,
		Recorded: func(a delegate.Attached) (Wanted, bool) {
			return Wanted{Network: a.Network.Name(), IfName: a.IfName}, reconciledName(a.IfName)
		},
		Wanted: func(context.Context, Record) (all []Wanted, err error) {
			for _, s := range o.wanted() {
				l := s.plan()[0]
				all = append(all, Wanted{Network: l.network, IfName: l.ifname, Plan: func(ctx context.Context, taken []string) (delegate.Attachment, error) {
					w.mu.Lock()
					w.trace = append(w.trace, planTrace(taken))
					f := w.plot.at("plan")
					w.mu.Unlock()
					return w.withFile(attachment(nodetest.Network(l.network, l.plugins...), o.key.ContainerID, l.ifname)), w.goesWrong(ctx, f)
				}})
			}
			return all, nil
		},
	})
	return err
}
