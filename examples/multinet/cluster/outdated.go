package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// outdatedNote is the text of the Event for a pod that is not detached.
const outdatedNote = "networks that the pod does not select stay as they are: the annotation " + nad.NetworksAnnotation +
	" may be older than they are, because the database of the API server was restored or the network status overwritten;" +
	" edit the annotation again to detach them"

// An outdated has pods with an annotation of networks that may be older than what they are
// attached to, and so detaches nothing: the API server had an object of the pod without the status
// that was written after the attachment. The status is written again, so that the object does not
// show it any more. The next daemon reads it from disk: a file for each pod.
//
// An annotation that is edited is new. It cannot be known that somebody has removed and restored
// the same text in between, unless the view has shown it.
//
// Goroutines may share an outdated.
type outdated struct {
	dir string // empty means no files
	log *slog.Logger

	mu  sync.Mutex // guards all
	all map[nad.Pod]outdatedPod
}

// An outdatedPod is a pod, and what it selected when its object was without its status.
type outdatedPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Networks  string `json:"networks"`
	Version   string `json:"version"` // of the object
}

func (o outdatedPod) pod() nad.Pod { return nad.Pod{Namespace: o.Namespace, Name: o.Name, UID: o.UID} }

// newOutdated reads what an earlier daemon has left in dir.
func newOutdated(dir string, log *slog.Logger) *outdated {
	o := &outdated{dir: dir, log: log, all: make(map[nad.Pod]outdatedPod)}
	if dir == "" {
		return o
	}
	files, _ := os.ReadDir(dir) // there may be none
	for _, f := range files {
		var p outdatedPod
		text, err := program.ReadFile(filepath.Join(dir, f.Name()))
		if err == nil && json.Unmarshal(text, &p) == nil && p.pod().Valid() {
			o.all[p.pod()] = p
		}
	}
	return o
}

// note notes that the annotation of object may be older than what the pod p is attached to.
func (o *outdated) note(p nad.Pod, object kube.Pod) {
	p.Container = ""
	entry := outdatedPod{p.Namespace, p.Name, p.UID, object.Annotations[nad.NetworksAnnotation], object.Version}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[p] == entry {
		return
	}
	o.all[p] = entry
	if o.dir == "" {
		return
	}
	text, _ := json.Marshal(entry) //nolint:errchkjson // strings
	if err := cmp.Or(os.MkdirAll(o.dir, 0o700), scratch.WriteFile(o.file(p), text)); err != nil {
		o.log.Warn("the next daemon may detach networks of a pod by an outdated annotation", slog.String("pod", p.String()), slog.Any("error", err))
	}
}

// is reports whether the annotation of object, which the API server has of the pod p, may be older
// than what p is attached to.
func (o *outdated) is(p nad.Pod, object kube.Pod) bool {
	p.Container = ""
	o.mu.Lock()
	defer o.mu.Unlock()
	entry, noted := o.all[p]
	return noted && entry.Networks == object.Annotations[nad.NetworksAnnotation]
}

// seen is told of each pod in the view. It forgets one whose annotation was edited.
func (o *outdated) seen(object kube.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p, entry := range o.all {
		if p.Namespace != object.Namespace || p.Name != object.Name || entry.Networks == object.Annotations[nad.NetworksAnnotation] {
			continue
		}
		if order, err := resourceversion.CompareResourceVersion(object.Version, entry.Version); err == nil && order > 0 {
			o.remove(p)
		}
	}
}

// forget forgets a pod that has no records.
func (o *outdated) forget(p nad.Pod) {
	p.Container = ""
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(p)
}

// remove forgets a pod. The caller holds o.mu.
func (o *outdated) remove(p nad.Pod) {
	if _, noted := o.all[p]; !noted {
		return
	}
	delete(o.all, p)
	if o.dir != "" {
		_ = os.Remove(o.file(p)) // what is left is about an annotation that the pod does not have
	}
}

// file returns the path of the file of a pod. The UID may be anything.
func (o *outdated) file(p nad.Pod) string {
	sum := sha256.Sum256([]byte(p.UID))
	return filepath.Join(o.dir, hex.EncodeToString(sum[:16])+".json")
}
