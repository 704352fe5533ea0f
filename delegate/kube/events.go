package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// The reasons of Events that this package makes by itself.
const (
	addedInterface   = "AddedInterface"   // normal
	removedInterface = "RemovedInterface" // normal

	statusNotWritten  = "StatusNotWritten"  // the API server refuses it
	statusOverwritten = "StatusOverwritten" // by somebody else
	statusTrimmed     = "StatusTrimmed"     // because it would be too long
)

// typeOf returns the type of the Events with a reason.
func typeOf(reason string) string {
	if reason == addedInterface || reason == removedInterface {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// Limits of Events.
const (
	eventQueue  = 128              // Events of a namespace that wait to be sent
	eventMemory = 1024             // Events that are remembered
	eventNote   = 1024             // bytes of a note, see package k8s.io/api/events/v1
	eventAction = 128              // bytes of an action, or of a name
	eventAge    = 10 * time.Minute // of an Event that is sent
	eventRepeat = time.Hour        // for as long does the API server keep an Event
	eventFlush  = 2 * time.Second  // at the end
)

// Events writes Events (events.k8s.io/v1). Its methods never block and never fail: an
// Event that cannot be sent is tried again for ten minutes, and is dropped when too many
// of its namespace wait, which are the only ones that wait for it. Each Event keeps its own text. A warning that has been sent in the last hour is not
// sent again; what is normal has happened again.
//
// Texts must not quote configurations: not everybody who may read Events may read
// configurations too.
//
// Goroutines may share Events. A nil *Events has none. Nothing is sent before
// [Events.Run].
type Events struct {
	client     client
	log        *slog.Logger
	controller string
	instance   string
	self       corev1.ObjectReference

	warn sync.Once // about a refusal

	mu            sync.Mutex             // protects what follows
	told          *cache.LRUExpireCache  // what warnings say
	lines         map[string][]event     // by namespace; the first of each is being sent
	start         func(namespace string) // sends a line that was empty; nil unless Run is running
	last          int64                  // number in the name of the last Event
	sent, dropped uint64
}

// An event is one that is to be sent.
type event struct {
	about                corev1.ObjectReference
	reason, action, note string

	// Two Events that differ in these alone say the same.
	name string
	at   time.Time
}

// namespace returns the one in which an Event is written.
func (e event) namespace() string { return cmp.Or(e.about.Namespace, metav1.NamespaceDefault) }

// said returns what an Event says, without when.
func (e event) said() event {
	e.name, e.at = "", time.Time{}
	return e
}

// NewEvents returns Events for the cluster of v, in the name of Config.UserAgent. self is the
// pod of the program: Events that are about no other object are about it. If it is zero they
// are about the node, Config.Node, and if that is empty too they are left out.
func (v *View) NewEvents(self nad.Pod) *Events {
	e := &Events{
		client: v.events, log: v.log, controller: v.config.userAgent(), instance: v.config.userAgent(),
		lines: make(map[string][]event), told: cache.NewLRUExpireCache(eventMemory), last: time.Now().UnixNano(),
	}
	switch node := v.config.Node; {
	case self.Name != "":
		e.self, e.instance = podReference(self), self.Name
	case node != "":
		// The kubelet names itself so as well.
		e.self = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
		e.instance += "-" + node
	}
	e.instance = cut(e.instance, eventAction)
	return e
}

// Added says, in one Event, that networks were attached to a pod: list is what its status says
// of them.
func (e *Events) Added(pod nad.Pod, list []status.Network) {
	notes := make([]string, len(list))
	for i, n := range list {
		notes[i] = attached(n)
	}
	if len(list) > 0 {
		e.Pod(pod, addedInterface, "AddInterfaces", "Add "+strings.Join(notes, ", "))
	}
}

// Removed says that an interface of a running pod was detached from a network.
func (e *Events) Removed(pod nad.Pod, ifname, network string) {
	e.Pod(pod, removedInterface, ifname, "Remove "+ifname+" from "+network)
}

// attached says which interface has which addresses from which network.
func attached(n status.Network) string {
	var parts []string
	if n.Interface != "" {
		parts = append(parts, n.Interface)
	}
	if len(n.IPs) > 0 {
		parts = append(parts, "["+strings.Join(n.IPs, " ")+"]")
	}
	if len(parts) > 0 {
		parts = append(parts, "from")
	}
	return strings.Join(append(parts, n.Name), " ")
}

// Pod adds a warning about a pod. reason is one word, such as NoNetworkFound, and so is action:
// what was tried, such as AddNetwork, or the interface concerned. A container outside of
// Kubernetes has no Events.
func (e *Events) Pod(pod nad.Pod, reason, action, note string) {
	if pod.Valid() {
		e.add(podReference(pod), reason, action, note)
	}
}

// Definition adds a warning about a definition. The same text is sent again for each version
// of the definition.
func (e *Events) Definition(d nad.Definition, reason, action, note string) {
	e.add(corev1.ObjectReference{
		APIVersion: definitionVersion.String(), Kind: definitionKind,
		Namespace: d.Namespace, Name: d.Name, UID: types.UID(d.UID), ResourceVersion: d.Version,
	}, reason, action, note)
}

// program adds an Event about the program itself, see [View.NewEvents].
func (e *Events) program(reason, action, note string) {
	if e != nil && e.self.Name != "" {
		e.add(e.self, reason, action, note)
	}
}

// Stats returns how many Events were accepted up to now, and how many were dropped: refused,
// too old, or too many.
func (e *Events) Stats() (sent, dropped uint64) {
	if e == nil {
		return 0, 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent, e.dropped
}

func podReference(pod nad.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod",
		Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
	}
}

// add queues an Event, unless it is a warning that is there already.
func (e *Events) add(about corev1.ObjectReference, reason, action, note string) {
	if e == nil {
		return
	}
	ev := event{about: about, reason: reason, action: cut(cmp.Or(action, reason), eventAction), note: cut(note, eventNote), at: time.Now()}
	e.mu.Lock()
	defer e.mu.Unlock()
	warning := typeOf(reason) == corev1.EventTypeWarning
	if _, told := e.told.Get(ev.said()); warning && told {
		return
	}
	line := e.lines[ev.namespace()]
	if len(line) == eventQueue {
		e.dropped++
		return
	}
	e.last++
	ev.name = eventName(about.Name, e.last)
	if warning {
		e.told.Add(ev.said(), nil, eventRepeat)
	}
	e.lines[ev.namespace()] = append(line, ev)
	if len(line) == 0 && e.start != nil {
		e.start(ev.namespace())
	}
}

// eventName returns the name of an Event about an object. The number is no other Event's.
func eventName(object string, number int64) string {
	suffix := fmt.Sprintf(".%x", number)
	return strings.TrimRight(object[:min(len(object), 253-len(suffix))], "-.") + suffix
}

// cut returns s, or its beginning if s is longer than limit.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}

// Run sends Events, those of a namespace one after the other, until ctx ends. It then takes up
// to two seconds more for those that wait, and drops the rest.
func (e *Events) Run(ctx context.Context) {
	if e == nil {
		return
	}
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(eventFlush, cancel) })()
	var sending sync.WaitGroup
	defer sending.Wait()
	e.mu.Lock()
	e.start = func(namespace string) { sending.Go(func() { e.send(late, ctx.Done(), namespace) }) }
	for namespace := range e.lines {
		e.start(namespace)
	}
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.start = nil
	e.mu.Unlock()
}

// send sends the Events of a namespace and counts them, until none waits.
func (e *Events) send(ctx context.Context, ending <-chan struct{}, namespace string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.lines[namespace]) > 0 {
		ev := e.lines[namespace][0]
		e.mu.Unlock()
		sent := e.try(ctx, ending, ev)
		e.mu.Lock()
		e.lines[namespace] = e.lines[namespace][1:]
		if sent {
			e.sent++
			continue
		}
		e.dropped++
		e.told.Remove(ev.said())
	}
	delete(e.lines, namespace)
}

// try sends an Event until the API server accepts or refuses it, it is too old, or ctx
// ends. It does not wait for the end of a pause when ending is closed: there is little time left.
func (e *Events) try(ctx context.Context, ending <-chan struct{}, ev event) (sent bool) {
	for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
		err := e.post(ctx, ev)
		v := judge(err, false)
		switch {
		case v.outcome == settled:
			return true
		case v.outcome == refused:
			e.warn.Do(func() {
				e.log.WarnContext(ctx, "Event refused, the next ones are dropped without a word", "error", err)
			})
			return false
		case v.outcome == gone, time.Since(ev.at) > eventAge:
			return false
		}
		select {
		case <-time.After(max(pause, v.delay)):
		case <-ending:
			ending, pause = nil, time.Second/2
		case <-ctx.Done():
			return false
		}
	}
}

// post sends an Event once.
func (e *Events) post(ctx context.Context, ev event) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := e.client.do(ctx, http.MethodPost, func(q *rest.Request) {
		q.Namespace(ev.namespace()).Resource("events").Body(&eventsv1.Event{
			ObjectMeta:          metav1.ObjectMeta{Namespace: ev.namespace(), Name: ev.name},
			EventTime:           metav1.NewMicroTime(ev.at),
			ReportingController: e.controller,
			ReportingInstance:   e.instance,
			Action:              ev.action,
			Reason:              ev.reason,
			Regarding:           ev.about,
			Note:                ev.note,
			Type:                typeOf(ev.reason),
		})
	}).Into(&eventsv1.Event{})
	if apierrors.IsAlreadyExists(err) {
		return nil // it was sent before, and the answer was lost
	}
	return err
}
