package kube

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A Reason is why there is an Event. An Event is a warning unless its Reason says
// otherwise.
type Reason string

// The reasons.
const (
	AddedInterface          Reason = "AddedInterface"   // to a pod; normal
	RemovedInterface        Reason = "RemovedInterface" // from a pod that runs; normal
	FailedAddingInterface   Reason = "FailedAddingInterface"
	FailedRemovingInterface Reason = "FailedRemovingInterface"

	NoNetworkFound   Reason = "NoNetworkFound"   // a definition does not exist
	InvalidNetwork   Reason = "InvalidNetwork"   // a definition or a selection cannot be used
	NetworkForbidden Reason = "NetworkForbidden" // by the policy of the node
	NetworksIgnored  Reason = "NetworksIgnored"  // what a pod asks for is not done

	DeviceInfoLost    Reason = "DeviceInfoLost"    // a device information file cannot be written or read
	ClaimMetadataLost Reason = "ClaimMetadataLost" // containers do not see what their claims are attached to

	statusNotWritten  Reason = "StatusNotWritten"  // the API server refuses it
	statusOverwritten Reason = "StatusOverwritten" // by somebody else
	statusTrimmed     Reason = "StatusTrimmed"     // because it would be too long
)

// kind returns the type of Events.
func (r Reason) kind() string {
	switch r {
	case AddedInterface, RemovedInterface:
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// An EventMode says which Events there are.
type EventMode string

// The modes.
const (
	EventsBrief EventMode = "brief" // one AddedInterface for each pod; the empty mode too
	EventsFull  EventMode = "full"  // one AddedInterface for each interface
	EventsOff   EventMode = "off"   // none, and no request
)

// An EventsConfig says which Events there are, and whose they are.
type EventsConfig struct {
	Mode EventMode

	// Controller is the name of the program. Empty means "metacni".
	Controller string

	// Self is the pod of the program: Events that are about no other object are
	// about it. If it is zero they are about the node, Config.Node of the View,
	// and if that is empty too they are left out.
	Self nad.Pod
}

// Limits of Events.
const (
	eventQueue  = 256              // Events that wait to be sent
	eventMemory = 1024             // Events that are remembered
	eventNote   = 1024             // bytes of a note, see package k8s.io/api/events/v1
	eventAction = 128              // bytes of an action, or of a name
	eventAge    = 10 * time.Minute // of an Event that is sent
	eventRepeat = time.Hour        // for as long does the API server keep an Event
	eventFlush  = 2 * time.Second  // at the end
)

// Events writes Events (events.k8s.io/v1). Its methods never block and never fail: an
// Event that cannot be sent is tried again for ten minutes, and is dropped when too many
// wait. Each Event keeps its own text. A warning that has been sent in the last hour is not
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
	mode       EventMode
	controller string
	instance   string
	self       corev1.ObjectReference
	queue      chan event

	warn sync.Once // about a refusal

	mu    sync.Mutex // protects what follows
	told  map[event]time.Time
	last  int64 // number in the name of the last Event
	stats EventStats
}

// An event is one that is to be sent.
type event struct {
	about        corev1.ObjectReference
	reason       Reason
	action, note string

	// Two Events that differ in these alone say the same.
	name string
	at   time.Time
}

// said returns what an Event says, without when.
func (e event) said() event {
	e.name, e.at = "", time.Time{}
	return e
}

// EventStats counts what became of Events.
type EventStats struct {
	Sent    uint64 // and accepted
	Dropped uint64 // refused, too old, or too many
}

// NewEvents returns Events for the cluster of v.
func (v *View) NewEvents(c EventsConfig) *Events {
	controller := cmp.Or(c.Controller, "metacni")
	e := &Events{
		client: v.events, log: v.log, mode: c.Mode, controller: controller, instance: controller,
		queue: make(chan event, eventQueue), told: map[event]time.Time{}, last: time.Now().UnixNano(),
	}
	switch node := v.config.Node; {
	case c.Self.Name != "":
		e.self, e.instance = podReference(c.Self), c.Self.Name
	case node != "":
		// The kubelet names itself so as well.
		e.self = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
		e.instance += "-" + node
	}
	e.instance = cut(e.instance, eventAction)
	return e
}

// Added says that networks were attached to a pod: list is what its status says of them.
func (e *Events) Added(pod nad.Pod, list []status.Network) {
	if e == nil || len(list) == 0 {
		return
	}
	notes := make([]string, len(list))
	for i, n := range list {
		notes[i] = attached(n)
		if e.mode == EventsFull {
			e.Pod(pod, AddedInterface, n.Interface, "Add "+notes[i])
		}
	}
	if e.mode != EventsFull {
		e.Pod(pod, AddedInterface, "AddInterfaces", "Add "+strings.Join(notes, ", "))
	}
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

// Pod adds an Event about a pod. action is one word: what was tried, such as AddNetwork, or
// the interface concerned. A container outside of Kubernetes has no Events.
func (e *Events) Pod(pod nad.Pod, reason Reason, action, note string) {
	if pod.Valid() {
		e.add(podReference(pod), reason, action, note)
	}
}

// Definition adds an Event about a definition. The same text is sent again for each version
// of the definition.
func (e *Events) Definition(d nad.Definition, reason Reason, action, note string) {
	e.add(corev1.ObjectReference{
		APIVersion: definitionVersion.String(), Kind: definitionKind,
		Namespace: d.Namespace, Name: d.Name, UID: types.UID(d.UID), ResourceVersion: d.Version,
	}, reason, action, note)
}

// Self adds an Event about the program itself, see EventsConfig.
func (e *Events) Self(reason Reason, action, note string) {
	if e != nil && e.self.Name != "" {
		e.add(e.self, reason, action, note)
	}
}

// Stats returns the counts up to now.
func (e *Events) Stats() EventStats {
	if e == nil {
		return EventStats{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

func podReference(pod nad.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod",
		Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
	}
}

// add queues an Event, unless it is a warning that is there already.
func (e *Events) add(about corev1.ObjectReference, reason Reason, action, note string) {
	if e == nil || e.mode == EventsOff {
		return
	}
	if action == "" {
		action = string(reason)
	}
	ev := event{about: about, reason: reason, action: cut(action, eventAction), note: cut(note, eventNote), at: time.Now()}
	e.mu.Lock()
	defer e.mu.Unlock()
	warning := reason.kind() == corev1.EventTypeWarning
	if at, ok := e.told[ev.said()]; warning && ok && ev.at.Sub(at) < eventRepeat {
		return
	}
	e.last++
	ev.name = eventName(about.Name, e.last)
	select {
	case e.queue <- ev:
		if warning {
			e.remember(ev)
		}
	default:
		e.stats.Dropped++
	}
}

// remember notes that an Event has been told. The caller holds e.mu.
func (e *Events) remember(ev event) {
	if len(e.told) >= eventMemory {
		maps.DeleteFunc(e.told, func(_ event, at time.Time) bool { return ev.at.Sub(at) >= eventRepeat })
	}
	if len(e.told) >= eventMemory {
		clear(e.told)
	}
	e.told[ev.said()] = ev.at
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
