package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"maps"
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

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/delegate/thick/wire"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
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

	outages []span           // of the API server
	turns   chan struct{}    // has an element for each command of the runtime, and is full for a GC
	alone   chan struct{}    // has an element for a GC
	added   map[string]added // by the UID of the pod
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

// A memory is a listener at an address.
type memory struct {
	*address
	ctx  context.Context // ends with Close
	end  context.CancelFunc
	wait func() error // for its turn, which the first Accept does as well

	mu   sync.Mutex
	open []net.Conn
}

func (a *address) listen() *memory {
	a.enter(1)
	m := &memory{address: a}
	m.ctx, m.end = context.WithCancel(context.Background())
	m.wait = sync.OnceValue(func() error {
		select {
		case m.turn <- struct{}{}:
			context.AfterFunc(m.ctx, func() { <-m.turn })
			return nil
		case <-m.ctx.Done():
			return net.ErrClosed
		}
	})
	return m
}

func (m *memory) Accept() (net.Conn, error) {
	if err := m.wait(); err != nil {
		return nil, err
	}
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
	p.host.Listener = relay
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
func (s *simulation) behave(_ int, c delegatetest.Invocation, p delegatetest.Fake) delegatetest.Fake {
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
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		s.note("plugin: %s, %s after %s", what, does, took)
		out, err := p(ctx, c)
		s.ends(c, err)
		return out, err
	}
}

// ends notes which interfaces there are after a plugin has ended.
func (s *simulation) ends(c delegatetest.Invocation, err error) {
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

// newSimulation returns a node on which nothing runs yet.
func newSimulation(t *testing.T, seed uint64, dir string, peer net.Conn) *simulation {
	t.Helper()
	s := &simulation{
		T: t, seed: seed, start: time.Now(), dir: dir, disk: filepath.Join(dir, "disk0"), counts: map[string]int{},
		made: map[string][]string{}, endNetNS: map[string]func(){}, turns: make(chan struct{}, 100), alone: make(chan struct{}, 1),
		added: map[string]added{},
		api:   kubetest.New(scheme.Codecs.UniversalDeserializer().Decode),
		atAPI: newAddress(peer), socket: newAddress(peer), relay: newAddress(peer),
	}
	plugins := map[string]delegatetest.Fake{}
	for i, typ := range []string{"bridge", "ptp", "macvlan", "still"} {
		plugins[typ] = delegatetest.Result(nodetest.Result(fmt.Sprintf("10.%d.0.2/24", i)))
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

// A container is one of the runtime's, with its memory of the commands.
type container struct {
	own          time.Duration // see pause
	id, pod, uid string
	selects      []string // definitions
	conf         []byte   // of its ADD, and so of its DEL
	types        []string // of the plugins that its ADD runs, by interface
	state        fate
	forgotten    time.Time
}

// A fate is the state of a container.
type fate int

const (
	changing  fate = iota // a command is under way, or has failed
	attached              // its ADD has succeeded
	detached              // its DEL has succeeded
	forgotten             // the runtime does not know it any more, and has sent no DEL
)

// An added says when an ADD has succeeded, and in which daemon.
type added struct {
	at time.Time
	by *incarnation
}

// become changes the fate of a container.
func (s *simulation) become(c *container, f fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.state = f; f == forgotten {
		c.forgotten = time.Now()
	}
}

// with returns the containers with one of these fates, in order.
func (s *simulation) with(fates ...fate) []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.pods), func(c *container) bool { return !slices.Contains(fates, c.state) })
}

// live returns the attachments of a container that the plugins know, such as "bridge eth0".
func (s *simulation) live(id string) (all []string) {
	for _, a := range s.exec.Live() {
		if typ, rest, _ := strings.Cut(a, " "); strings.HasPrefix(rest, id+" ") {
			all = append(all, typ+strings.TrimPrefix(rest, id))
		}
	}
	return all
}

// wants returns what live returns if the container is attached.
func (c *container) wants() (all []string) {
	for i, typ := range c.types {
		all = append(all, fmt.Sprint(typ, " ", ifname(i)))
	}
	slices.Sort(all)
	return all
}

func ifname(i int) string {
	if i == 0 {
		return "eth0"
	}
	return fmt.Sprint("net", i)
}

func (s *simulation) netns(id string) string { return filepath.Join(s.dir, "netns", id) }

// published returns the plugin that the runtime finds in its directory, and the type of the
// primary network in it.
func (s *simulation) published() (conf map[string]any, typ string) {
	text, err := os.ReadFile(filepath.Join(s.dir, "net.d", "00-multinet.conflist"))
	if err != nil {
		return nil, ""
	}
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	var inner struct {
		Delegates []struct{ Plugins []struct{ Type string } }
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Plugins) != 1 {
		s.wrong("the published network is %s", text)
		return nil, ""
	}
	conf = list.Plugins[0]
	text, _ = json.Marshal(conf) //nolint:errchkjson // was decoded
	if err := json.Unmarshal(text, &inner); err != nil || len(inner.Delegates) != 1 {
		s.wrong("the published network delegates to %s", text)
		return nil, ""
	}
	conf["cniVersion"], conf["name"] = list.CNIVersion, list.Name
	return conf, inner.Delegates[0].Plugins[0].Type
}

// create makes a container of a pod, which the API server has.
func (s *simulation) create(r *rand.Rand, name, id string) *container {
	conf, typ := s.published()
	if conf == nil {
		return nil
	}
	c := &container{id: id, pod: name, types: []string{typ}}
	for _, d := range []string{"macvlan", "still"} {
		if r.IntN(2) == 0 {
			c.selects, c.types = append(c.selects, "ns/"+d), append(c.types, d)
		}
	}
	annotations := map[string]string{"a": "b"}
	if c.selects != nil {
		annotations[nad.NetworksAnnotation] = strings.Join(c.selects, ",")
	}
	conf["runtimeConfig"] = map[string]any{"io.kubernetes.cri.pod-annotations": annotations}
	c.conf, _ = json.Marshal(conf) //nolint:errchkjson // was decoded
	c.uid = string(kubetest.Put(s.api, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: annotations}, Spec: corev1.PodSpec{NodeName: "n1"},
	}).UID)
	var end func()
	if os.Geteuid() == 0 { // others have no namespaces: to them each container is unknown
		s.onHealthyDisk(func() { end = nodetest.NetNS(s, s.netns(id)) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endNetNS[id] = end
	s.pods = append(s.pods, c)
	return c
}

// remove removes the pod of a container, and its namespace.
func (s *simulation) remove(c *container) {
	s.removeNetNS(c)
	kubetest.Delete[corev1.Pod](s.api, "ns", c.pod)
}

// removeNetNS removes the namespace of a container, and with it the interfaces there.
func (s *simulation) removeNetNS(c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := s.endNetNS[c.id]; end != nil {
		end()
	}
	delete(s.made, s.netns(c.id))
}

func (s *simulation) args(c *container) *skel.CmdArgs {
	return &skel.CmdArgs{
		ContainerID: c.id, Netns: s.netns(c.id), IfName: "eth0", Path: "/opt/cni/bin", StdinData: c.conf,
		Args: fmt.Sprintf("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s", c.pod, c.id, c.uid),
	}
}

// Answers of commands. Others are the text of an error.
const (
	ok     = "ok"
	queued = "queued"
	left   = "left"
)

// command sends a command as the runtime's shim does. A DEL is queued if the daemon is away.
// The client leaves when ctx ends.
func (s *simulation) command(ctx context.Context, c *container, verb string, a *skel.CmdArgs, timeout time.Duration) (answer string) {
	who := strings.TrimSpace(verb + " " + c.id)
	if verb != "GC" {
		defer s.turn(1)()
		s.pause(c.own, time.Millisecond)
	}
	s.note("%s, for %s", who, timeout)
	defer func() { s.note("%s: %s", who, answer) }()
	begun := time.Now()
	limit := begun.Add(timeout)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		status, body, err := s.post(ctx, verb, a, limit)
		away, late := errors.Is(err, syscall.ECONNREFUSED), !time.Now().Before(limit)
		switch {
		case err == nil && status == http.StatusOK && (verb != "ADD" || !late):
			return ok
		case err == nil && status != http.StatusOK && (status != http.StatusServiceUnavailable || verb == "STATUS"):
			return answered(status, body)
		case ctx.Err() != nil:
			return left
		case late:
			return "no answer in time"
		case away && verb == "DEL" && time.Since(begun) > 2*time.Second:
			return s.enqueue(a)
		case err != nil && !away && verb == "ADD":
			return "lost"
		case time.Since(begun) > 30*time.Second:
			return "not served"
		}
		s.pause(c.own, min(pause, time.Until(limit)))
	}
}

// turn waits until a command may be sent: a runtime sends nothing else while it sends a GC, which
// takes all turns. The caller calls end.
func (s *simulation) turn(n int) (end func()) {
	s.alone <- struct{}{}
	for range n {
		s.turns <- struct{}{}
	}
	<-s.alone
	return func() {
		for range n {
			<-s.turns
		}
	}
}

// answered returns the code of an answer that is an error.
func answered(status int, body []byte) string {
	var e types.Error
	if err := json.Unmarshal(body, &e); err != nil || e.Code == 0 {
		return fmt.Sprintf("status %d, %s", status, body)
	}
	return fmt.Sprint("code ", e.Code)
}

// post sends one request to the daemon, which is to end at the limit, and waits for the answer for
// three seconds more.
func (s *simulation) post(ctx context.Context, verb string, a *skel.CmdArgs, limit time.Time) (status int, body []byte, err error) {
	ctx, cancel := context.WithDeadline(ctx, limit.Add(3*time.Second))
	defer cancel()
	m := wire.Request{Config: a.StdinData, APIVersion: wire.Version, Env: map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": a.ContainerID, "CNI_NETNS": a.Netns, "CNI_IFNAME": a.IfName, "CNI_ARGS": a.Args, "CNI_PATH": a.Path,
	}}
	maps.DeleteFunc(m.Env, func(_, v string) bool { return v == "" })
	m.DeadlineMs = max(1, time.Until(limit).Milliseconds())
	s.mu.Lock()
	s.counts["deadline "+verb+a.ContainerID] = int(m.DeadlineMs)
	s.mu.Unlock()
	text, _ := json.Marshal(m) //nolint:errchkjson // strings
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://daemon"+wire.PathCNI, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.socket.dial(ctx)
	}}}
	answer, err := client.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// enqueue leaves a DEL in the queue with the shim itself, which finds no daemon.
func (s *simulation) enqueue(a *skel.CmdArgs) string {
	client := shim.Client{Socket: filepath.Join(s.dir, "run", "nobody"), Queue: filepath.Join(s.disk, "queue"), QueueWait: -1}
	if err := client.Execute(context.Background(), "DEL", a); err != nil {
		return "not queued"
	}
	for _, name := range s.queue() {
		text, err := os.ReadFile(name)
		if err == nil && bytes.Contains(text, []byte(`"CNI_CONTAINERID":"`+a.ContainerID+`"`)) {
			return queued
		}
	}
	s.wrong("the DEL of %s has succeeded, but is not queued", a.ContainerID)
	return queued
}

// queue returns the files of the queue.
func (s *simulation) queue() []string {
	names, _ := filepath.Glob(filepath.Join(s.disk, "queue", "*.json")) // the pattern is right
	return names
}

// observe notes which daemon has attached a container, and checks that a command has ended in
// time: at its deadline, or soon after.
func (s *simulation) observe(p *incarnation, e thick.Event) {
	if p.dead.Load() {
		return
	}
	uid := nad.PodOf(e.Args).UID
	s.mu.Lock()
	if e.Command == "ADD" && e.Err == nil {
		s.added[uid] = added{time.Now(), p}
	}
	s.mu.Unlock()
	limit := map[string]time.Duration{"ADD": 110 * time.Second, "DEL": 110 * time.Second, "GC": 110 * time.Second, "CHECK": time.Minute, "STATUS": 2 * time.Second}[e.Command]
	s.mu.Lock()
	if told := time.Duration(s.counts["deadline "+e.Command+e.ContainerID]) * time.Millisecond; !e.Replayed {
		limit = min(limit, told)
	}
	s.mu.Unlock()
	if e.Command == "ADD" {
		limit += undoTimeout // of the plugin
	}
	if limit += 2 * time.Second; e.Duration > limit {
		s.wrong("%s %s has taken %s, want at most %s: %v", e.Command, e.ContainerID, e.Duration, limit, e.Err)
	}
}

// run is the life of a pod on the node: containers come and go until the simulation calms down.
func (s *simulation) run(until time.Time, n int) {
	name := fmt.Sprint("pod", n)
	r := s.chance(name)
	own := time.Duration(100+n) * time.Microsecond
	pause := func(least, most time.Duration) { s.pause(own, between(r, least, most)) }
	pause(0, 30*time.Second)
	for i := 0; time.Now().Before(until); {
		c := s.create(r, name, fmt.Sprintf("%s-%d", name, i))
		if c == nil {
			pause(time.Second, 2*time.Second)
			continue
		}
		c.own = own
		if s.attach(r, c) && time.Now().Before(until) {
			pause(time.Second, time.Minute)
			if answer := s.command(s.Context(), c, "CHECK", s.args(c), 30*time.Second); answer == "code 3" {
				s.wrong("CHECK %s: %s", c.id, answer)
			}
			if r.IntN(4) == 0 && s.command(s.Context(), c, "ADD", s.args(c), 30*time.Second) == ok {
				s.wrong("a second ADD of %s has succeeded", c.id)
			}
			pause(time.Second, 2*time.Minute)
		}
		if c.state == attached && time.Now().After(until) {
			return // it stays
		}
		if r.IntN(6) == 0 {
			s.note("%s is forgotten", c.id)
			s.remove(c)
			s.become(c, forgotten)
			i++
			continue
		}
		s.detach(r, c)
		if s.remove(c); r.IntN(3) != 0 {
			i++ // otherwise the next container has the same ID
		}
		pause(0, 10*time.Second)
	}
}

// attach sends the ADD of a container, and reports whether it has succeeded. Some clients leave
// before the end, and sometimes the DEL comes before that.
func (s *simulation) attach(r *rand.Rand, c *container) bool {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	if r.IntN(8) == 0 {
		defer time.AfterFunc(between(r, time.Millisecond, 10*time.Second), cancel).Stop()
	}
	early := make(chan struct{})
	if r.IntN(10) == 0 {
		other := *c
		other.own += time.Microsecond / 2
		after := between(r, 10*time.Millisecond, time.Second)
		go func() {
			defer close(early)
			s.pause(other.own, after)
			s.command(s.Context(), &other, "DEL", s.args(c), time.Minute)
		}()
	} else {
		close(early)
	}
	answer := s.command(ctx, c, "ADD", s.args(c), between(r, 2*time.Second, 110*time.Second))
	select {
	case <-early:
	default:
		<-early // nobody knows which came first
		return false
	}
	if answer != ok {
		return false
	}
	if got, want := s.live(c.id), c.wants(); !slices.Equal(got, want) {
		s.wrong("ADD %s has succeeded, and attached is %q, want %q", c.id, got, want)
	}
	s.become(c, attached)
	return true
}

// mayBeLeft reports whether a DEL of a container may succeed although something is left: what never
// was attached, and has no interface, is left to sweeps.
func (s *simulation) mayBeLeft(c *container) bool {
	names, _ := s.interfaces(s.netns(c.id)) // does not fail
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.added[c.uid].by == nil && len(names) == 1
}

// detach sends DELs for a container until one succeeds.
func (s *simulation) detach(r *rand.Rand, c *container) {
	s.become(c, changing)
	if r.IntN(2) == 0 {
		s.removeNetNS(c) // before the DEL
	}
	for {
		switch s.command(s.Context(), c, "DEL", s.args(c), between(r, 5*time.Second, 110*time.Second)) {
		case ok:
			if got := s.live(c.id); got != nil && !s.mayBeLeft(c) {
				s.wrong("DEL %s has succeeded, and attached is %q", c.id, got)
			}
			s.become(c, detached)
			return
		case queued:
			s.become(c, detached)
			return
		}
		s.pause(c.own, between(r, time.Second, 20*time.Second))
	}
}

// collect has the daemon collect garbage from time to time, and asks for its status.
func (s *simulation) collect(until time.Time) {
	r := s.chance("runtime")
	runtime := &container{own: 6 * time.Microsecond}
	for time.Now().Before(until) {
		s.pause(runtime.own, between(r, 20*time.Second, 2*time.Minute))
		s.gc()
		s.command(s.Context(), runtime, "STATUS", &skel.CmdArgs{StdinData: []byte(`{"cniVersion":"1.1.0","name":"multinet","type":"multinet-shim"}`)}, time.Second)
	}
}

// gc sends a GC. What is forgotten by then is gone if the GC succeeds, provided that no other
// operation works on it meanwhile.
func (s *simulation) gc() {
	defer s.turn(cap(s.turns))()
	s.pause(7*time.Microsecond, 0)
	conf, _ := s.published()
	if conf == nil {
		return
	}
	valid := []types.GCAttachment{}
	for _, c := range s.with(changing, attached) {
		valid = append(valid, types.GCAttachment{ContainerID: c.id, IfName: "eth0"})
	}
	var stale []*container
	if !s.sweeps() && s.current().server.Loads()["add"] == (thick.Load{}) && s.current().server.Loads()["del"] == (thick.Load{}) && len(s.queue()) == 0 {
		stale = s.with(forgotten)
	}
	conf["cni.dev/valid-attachments"] = valid
	text, _ := json.Marshal(conf) //nolint:errchkjson // was decoded
	if s.command(s.Context(), &container{}, "GC", &skel.CmdArgs{Path: "/opt/cni/bin", StdinData: text}, 110*time.Second) != ok {
		return
	}
	for _, c := range stale {
		if got := s.live(c.id); got != nil {
			s.wrong("GC has succeeded, and of the forgotten %s there is %q", c.id, got)
		}
	}
}
