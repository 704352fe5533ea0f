package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/delegate/thick/wire"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

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
	s.changes[uid] = append(s.changes[uid], time.Now())
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
