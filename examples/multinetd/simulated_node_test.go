package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A simulation is a node in a bubble of package synctest, and what happens to it.
type simulation struct {
	*testing.T
	seed  uint64
	start time.Time
	dir   string

	exec   *delegatetest.Exec // the plugins, executed and resident
	api    *kubetest.Server
	atAPI  *address // of the API server
	socket *address // of the daemon
	relay  *address // where resident plugins register

	mu        sync.Mutex // protects what follows
	log       []event
	failures  []string
	counts    map[string]int // how often each thing has happened
	answers   []apiAnswer
	disk      string              // the directory of the daemon's state; another one after each crash
	daemon    *incarnation        // the last one
	processes []*incarnation      // all of them
	pods      []*container        // all that ever were
	made      map[string][]string // interfaces, by network namespace
	endNetNS  map[string]func()   // end the network namespaces of containers
	calm      bool                // nothing fails any more

	outages []span                 // of the API server
	turns   chan struct{}          // has an element for each command of the runtime, and is full for a GC
	alone   chan struct{}          // has an element for a GC
	added   map[string]added       // by the UID of the pod
	changes map[string][]time.Time // when operations have ended, by the UID of the pod
}

// A span is a time.
type span struct{ from, to time.Time }

// An event is a line of the log.
type event struct {
	at   time.Duration
	text string
}

// An apiAnswer is a request that the API server has answered.
type apiAnswer struct {
	kubetest.Request
	code int
}

// sweeps reports whether the daemons sweep.
func (s *simulation) sweeps() bool { return s.seed%2 == 0 }

// note adds a line to the log.
func (s *simulation) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, event{time.Since(s.start), fmt.Sprintf(format, args...)})
}

// history is the log, in which the order of what happens at one instant is that of the alphabet.
func (s *simulation) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.log, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.text, b.text)) })
	var b strings.Builder
	for _, e := range s.log {
		fmt.Fprintf(&b, "%14s %s\n", e.at, e.text)
	}
	return b.String()
}

// wrong notes that a guarantee does not hold.
func (s *simulation) wrong(format string, args ...any) {
	s.note("WRONG: "+format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, fmt.Sprintf("after %s: %s", time.Since(s.start), fmt.Sprintf(format, args...)))
}

// chance returns a source of random numbers that depends on the seed, on the name, and on how
// often it was asked for: not on who else asks.
func (s *simulation) chance(name string) *rand.Rand {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[name]++
	h := fnv.New64a()
	fmt.Fprint(h, name, s.counts[name])
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

// between returns a time of whole milliseconds.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return (least + time.Duration(r.Int64N(int64(most-least)+1))).Truncate(time.Millisecond)
}

// pause waits for a time, and then for an instant that nobody else has: the number of nanoseconds
// in each millisecond at which this actor acts. All other times are whole milliseconds.
func (s *simulation) pause(own, d time.Duration) {
	at := time.Since(s.start) + d
	if past := (at - own) % time.Millisecond; past != 0 {
		at += time.Millisecond - past
	}
	time.Sleep(at - time.Since(s.start))
}

// An address is where somebody listens, in memory. Like the socket of package thick it has one
// listener at a time, and passes to the next one that waits without losing a connection.
type address struct {
	peer  net.Conn      // a connection of this process, which identifies it
	turn  chan struct{} // has an element while there is a listener
	conns chan net.Conn

	mu      sync.Mutex    // protects what follows
	present int           // listeners, and those that wait to be one
	left    chan struct{} // closed when the last of them has left
}

func newAddress(peer net.Conn) *address {
	return &address{peer: peer, turn: make(chan struct{}, 1), conns: make(chan net.Conn)}
}

func (a *address) enter(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.present == 0 {
		a.left = make(chan struct{})
	}
	if a.present += n; a.present == 0 {
		close(a.left)
	}
}

// A memory is a listener at an address. Its turn comes with the first Accept.
type memory struct {
	*address
	ctx context.Context // ends with Close
	end context.CancelFunc

	mu   sync.Mutex
	open []net.Conn
}

func (a *address) listen() *memory {
	a.enter(1)
	m := &memory{address: a}
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// wait waits for the turn of m.
func (m *memory) wait() error {
	select {
	case m.turn <- struct{}{}:
		context.AfterFunc(m.ctx, func() { <-m.turn })
		return nil
	case <-m.ctx.Done():
		return net.ErrClosed
	}
}

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.open = append(m.open, c)
		return c, nil
	case <-m.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() == nil {
		m.end()
		m.enter(-1)
	}
	return nil
}

// cut closes the connections that m has accepted.
func (m *memory) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.open {
		_ = c.Close()
	}
}

func (m *memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// A lazy listener has its turn with the first Accept.
type lazy struct {
	*memory
	turned sync.Once
	err    error
}

func (l *lazy) Accept() (net.Conn, error) {
	if l.turned.Do(func() { l.err = l.wait() }); l.err != nil {
		return nil, l.err
	}
	return l.memory.Accept()
}

func (a *address) dial(ctx context.Context) (net.Conn, error) {
	a.mu.Lock()
	present, left := a.present, a.left
	a.mu.Unlock()
	if present == 0 {
		return nil, syscall.ECONNREFUSED
	}
	near, far := net.Pipe()
	select {
	case a.conns <- identified{far, a.peer}:
		return near, nil
	case <-left:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// An identified pipe has a peer whom the system knows.
type identified struct {
	net.Conn
	peer net.Conn
}

func (c identified) NetConn() net.Conn { return c.peer }

// ourselves returns a connection of this process with itself.
func ourselves(t *testing.T) net.Conn {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	nodetest.OK(t, err)
	nodetest.OK(t, syscall.Close(fds[1]))
	f := os.NewFile(uintptr(fds[0]), "pair")
	c, err := net.FileConn(f)
	nodetest.OK(t, errors.Join(err, f.Close()))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// An incarnation is a daemon that can die. It runs the plugins of the simulation.
type incarnation struct {
	*delegatetest.Exec
	*service
	sim   *simulation
	name  string
	born  time.Time // when it began to serve
	dead  atomic.Bool
	alive context.Context // ends when the process has died
	bury  context.CancelFunc
	stop  context.CancelFunc
	ended chan struct{}
	death time.Time // when it has ended, or died

	mu  sync.Mutex
	in  []*memory
	out []net.Conn // connections to the API server
}

var errDead = errors.New("the process has died")

// ExecPlugin runs a plugin, which dies with the process, as in a container.
func (p *incarnation) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.alive, cancel)()
	out, err := p.Exec.ExecPlugin(ctx, path, stdin, env)
	if p.dead.Load() {
		return nil, errDead
	}
	return out, err
}

// dialAPI connects to the API server.
func (p *incarnation) dialAPI(ctx context.Context, _, _ string) (net.Conn, error) {
	if p.dead.Load() {
		return nil, errDead
	}
	c, err := p.sim.atAPI.dial(ctx)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.out = append(p.out, c)
	}
	return c, err
}

// boot starts a daemon on the disk as it is. It begins to serve when the one before it has handed
// its socket over.
func (s *simulation) boot() {
	file := filepath.Join(s.dir, "daemon.json")
	s.onHealthyDisk(func() {
		kubeconfig := filepath.Join(s.dir, "kubeconfig")
		nodetest.OK(s, os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"x","cluster":{"server":"http://api"}}],
			"contexts":[{"name":"x","context":{"cluster":"x"}}]}`), 0o600))
		nodetest.OK(s, os.WriteFile(file, []byte(strings.NewReplacer("$DIR", s.dir, "$DISK", s.disk, "$POLICY", []string{"wait", "async", "require"}[s.seed%3],
			"$SWEEP", map[bool]string{true: "1m", false: "0s"}[s.sweeps()]).Replace(`{
			"socketDir": "$DIR/run", "cniDir": "$DISK/state", "queueDir": "$DISK/queue", "cniCacheDir": "$DIR/cache", "multusStateDir": "$DIR/multus",
			"multusConfigFile": "auto", "cniConfigDir": "$DIR/net.d", "kubeconfig": "$DIR/kubeconfig", "nodeName": "n1", "statusPolicy": "$POLICY", "statusRate": 1e12,
			"relayDir": "$DIR/none", "relayTypes": ["still"], "sweepInterval": "$SWEEP", "drainTimeout": "10s", "connectionLimit": 4}`)), 0o600))
	})
	conf, err := readConfig(nil, file, nil)
	nodetest.OK(s, err)
	p := &incarnation{Exec: s.exec, sim: s, ended: make(chan struct{})}
	p.alive, p.bury = context.WithCancel(context.Background())
	conf.cluster.Dial = p.dialAPI
	p.service = newService(s.Context(), conf, "", "v0", slog.New(slog.DiscardHandler))
	p.exec, p.interfaceNames = p, s.interfaces
	p.manager.Poll = true
	relay := s.relay.listen()
	p.host.Listener = &lazy{memory: relay}
	observe := p.server.Observer
	p.server.Observer = func(e thick.Event) {
		observe(e)
		s.observe(p, e)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	p.stop = stop
	s.mu.Lock()
	s.daemon, s.processes = p, append(s.processes, p)
	p.name = fmt.Sprint("daemon ", len(s.processes))
	s.mu.Unlock()
	s.note("%s starts", p.name)
	l := s.socket.listen()
	p.in = []*memory{l, relay}
	context.AfterFunc(p.alive, stop)
	go func() {
		defer close(p.ended)
		defer relay.Close()
		if err := l.wait(); err != nil {
			return
		}
		p.born = time.Now()
		err := p.serve(ctx, l, func(string) {})
		if !p.dead.Load() {
			p.death = time.Now()
			s.note("%s has ended: %v", p.name, err)
		}
		if err != nil && !p.dead.Load() {
			s.wrong("%s has failed", p.name)
		}
	}()
}

// crash kills the daemon, and with it the plugins that it runs. The disk stays as it is at this
// moment, for the next one: what the process would still do, it does to a copy.
func (s *simulation) crash() {
	synctest.Wait() // nobody is in the middle of a system call
	s.mu.Lock()
	p, old := s.daemon, s.disk
	s.disk = filepath.Join(s.dir, fmt.Sprint("disk", len(s.processes)))
	s.mu.Unlock()
	s.onHealthyDisk(func() { copyTree(s.T, old, s.disk) })
	s.note("%s dies", p.name)
	p.dead.Store(true)
	p.cut()
	synctest.Wait() // everybody has noticed, before what it was doing fails
	p.bury()
}

// cut closes the connections of a process.
func (p *incarnation) cut() {
	for _, m := range p.in {
		_ = m.Close()
		m.cut()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.out {
		_ = c.Close()
	}
}

// copyTree copies a directory with the modes of its files.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	nodetest.OK(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		copied := to + strings.TrimPrefix(path, from)
		if d.IsDir() {
			return os.Mkdir(copied, 0o700)
		}
		data, err := os.ReadFile(path)
		return cmp.Or(err, os.WriteFile(copied, data, 0o600))
	}))
}

// onHealthyDisk does something that the test does, and not the node.
func (s *simulation) onHealthyDisk(do func()) {
	defer limitFiles(s.T, limitFiles(s.T, syscall.Rlimit{Cur: healthy.Cur, Max: healthy.Max}))
	do()
}

// serveAPI starts the API server, and returns a function that stops it: connections break.
func (s *simulation) serveAPI() (stop func()) {
	m := s.atAPI.listen()
	nodetest.OK(s, m.wait())
	server := &http.Server{Handler: http.HandlerFunc(s.answer), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(m)
	}()
	return func() {
		_ = server.Close()
		<-served
	}
}

// answer is the API server's, after a while.
func (s *simulation) answer(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	q.Body = io.NopCloser(strings.NewReader(string(body)))
	select {
	case <-time.After(between(s.chance("api "+q.Method+" "+q.URL.Path), time.Millisecond, 50*time.Millisecond)):
	case <-q.Context().Done():
		panic(http.ErrAbortHandler)
	}
	at := time.Now()
	c := &coded{ResponseWriter: w, code: http.StatusOK}
	defer func() {
		if q.Method == http.MethodGet {
			return
		}
		s.note("api: %s %s: %d", q.Method, cmp.Or(podOf(q.URL.Path), "events"), c.code)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answers = append(s.answers, apiAnswer{kubetest.Request{Verb: strings.ToLower(q.Method), Name: podOf(q.URL.Path), Body: string(body), Time: at}, c.code})
	}()
	defer func() {
		if e := recover(); e != nil {
			c.code = 0
			panic(e)
		}
	}()
	s.api.ServeHTTP(c, q)
}

// podOf returns the name of the pod whose status a path is of.
func podOf(path string) string {
	path, ok := strings.CutSuffix(path, "/status")
	if !ok {
		return ""
	}
	return filepath.Base(path)
}

// A coded response knows its code.
type coded struct {
	http.ResponseWriter
	code int
}

func (c *coded) WriteHeader(code int) {
	c.code = code
	c.ResponseWriter.WriteHeader(code)
}

func (c *coded) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// behave decides what one call of a plugin does: by the seed and by the plugin, the container and
// how often the plugin was called for it.
func (s *simulation) behave(_ int, c delegatetest.Call, p delegatetest.Plugin) delegatetest.Plugin {
	what := strings.TrimSpace(c.String() + " " + c.ContainerID)
	r := s.chance("plugin " + what)
	took := between(r, time.Millisecond, 300*time.Millisecond)
	s.mu.Lock()
	calm := s.calm
	s.mu.Unlock()
	does := "succeeds"
	if kind := r.IntN(40); !calm && c.Command != "STATUS" {
		switch kind {
		case 0, 1:
			does, p = "fails", delegatetest.FailOn("", 107, "no", p)
		case 2:
			does, p = "dies when it has done it", delegatetest.KillOn("", p)
		case 3:
			does, p = "answers garbage", delegatetest.GarbageOn("ADD", p)
		case 4:
			does, p = "hangs", delegatetest.HangOn("", p)
		case 5, 6:
			took = between(r, time.Second, 2*time.Minute)
		}
	}
	p = delegatetest.SlowOn("", took, p)
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		s.note("plugin: %s, %s after %s", what, does, took)
		out, err := p(ctx, c)
		s.ends(c, err)
		return out, err
	}
}

// ends notes which interfaces there are after a plugin has ended.
func (s *simulation) ends(c delegatetest.Call, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(s.made[c.NetNS]), func(name string) bool { return name == c.IfName })
	switch {
	case err != nil:
	case c.Command == "ADD":
		s.made[c.NetNS] = append(others, c.IfName)
	case c.Command == "DEL":
		s.made[c.NetNS] = others
	}
}

// interfaces returns the interfaces in a network namespace.
func (s *simulation) interfaces(netns string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{"lo"}, s.made[netns]...), nil
}

// resident returns a plugin of the type still, which registers with the daemon.
func (s *simulation) resident() *resident.Plugin {
	do := func(ctx context.Context, c *plugin.Call) error {
		out, err := s.exec.ExecPlugin(ctx, "/resident/still", c.StdinData, c.Env)
		if err == nil {
			_, err = c.Stdout.Write(out)
		}
		return err
	}
	return &resident.Plugin{
		Index: "10", Name: "still", Types: []string{"still"},
		Plugin: plugin.Plugin{Add: do, Check: do, Del: do, GC: do, Status: do},
	}
}

// newSimulation returns a node on which nothing runs yet.
func newSimulation(t *testing.T, seed uint64, dir string, peer net.Conn) *simulation {
	t.Helper()
	s := &simulation{
		T: t, seed: seed, start: time.Now(), dir: dir, disk: filepath.Join(dir, "disk0"), counts: map[string]int{},
		made: map[string][]string{}, endNetNS: map[string]func(){}, turns: make(chan struct{}, 100), alone: make(chan struct{}, 1),
		added: map[string]added{}, changes: map[string][]time.Time{},
		api:   kubetest.New(scheme.Codecs.UniversalDeserializer().Decode),
		atAPI: newAddress(peer), socket: newAddress(peer), relay: newAddress(peer),
	}
	plugins := map[string]delegatetest.Plugin{}
	for i, typ := range []string{"bridge", "ptp", "macvlan", "still"} {
		plugins[typ] = delegatetest.Result(result(fmt.Sprintf("10.%d.0.2/24", i)))
	}
	s.exec = &delegatetest.Exec{Plugins: plugins, Script: s.behave}
	for _, name := range []string{"run", "netns", "net.d", "none", "disk0", "disk0/state", "disk0/queue"} {
		nodetest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	for _, typ := range []string{"macvlan", "still"} {
		kubetest.Put(s.api, kubetest.Definition{Namespace: "ns", Name: typ, Config: fmt.Sprintf(`{"cniVersion":"1.0.0","type":%q}`, typ)})
	}
	return s
}

// primary returns the configuration of a primary network of a type.
func primary(typ string) []byte {
	text, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "primary-" + typ, "plugins": []any{map[string]string{"type": typ}}}) //nolint:errchkjson // strings
	return text
}
