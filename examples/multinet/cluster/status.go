package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// attached is called when the container k.ContainerID of the pod p is attached to all its
// networks, added. It tells containers about their claims, has the status of the pod written,
// and waits for that as the key statusPolicy says.
func (c *Cluster) attached(ctx context.Context, k scratch.Key, p nad.Pod, added []delegate.Attached) error {
	p.Container = k.ContainerID
	c.tellContainers(ctx, p)
	if a := addOf(ctx); a != nil {
		a.record, a.added = k, added
	}
	return c.writer.Wait(ctx, p)
}

// stageStatus is the write of a pod's status, which may end after the ADD that asked for it.
const stageStatus delegate.Stage = "status"

// writing tells the Stages of a command of a request that writes the status it has asked for.
func (c *Cluster) writing(ctx context.Context, _ nad.Pod) func(error) {
	_, ended := c.plugin.System().Stages.Begin(ctx, stageStatus, delegate.Event{Command: delegate.CommandAdd})
	return ended
}

// Changed says that the records of a container have changed, or have been removed, other
// than by an ADD that succeeded. cniArgs are those of the command: they name the pod where
// there is no record any more.
func (c *Cluster) Changed(ctx context.Context, container, cniArgs string) {
	if !c.conf.On() {
		return
	}
	p := nad.PodOf(cniArgs)
	p.Container = container
	c.recorded(p)
	records, _ := c.container(ctx, container) // the writer asks again
	for _, r := range records {
		if recorded := multinet.PodOf(r.AddRecord); recorded != p {
			c.recorded(recorded)
		}
	}
}

// resume has the status of each pod with a record in dir written, unless that is what the API
// server has already: a previous daemon may have ended before it was. What such a pod selects may
// have changed too. It waits until dir can be read.
func (c *Cluster) resume(ctx context.Context, dir string) {
	pods, err := recordedPods(ctx, dir)
	for err != nil && program.Pause(ctx, resumePause) {
		pods, err = recordedPods(ctx, dir)
	}
	c.writer.Resume(pods)
	for _, p := range pods {
		c.follow.changed(p)
	}
}

// resumePause is the time between two attempts to read a directory of records.
const resumePause = time.Second

// recordedPods returns the pods that are attached by the records in dir. It passes over damaged
// records, and fails if dir cannot be read.
func recordedPods(ctx context.Context, dir string) (pods []nad.Pod, err error) {
	for r, err := range program.Records(ctx, dir) {
		switch {
		case err != nil && r.Key == (scratch.Key{}): // dir
			return nil, err
		case err == nil && r.State.Attached():
			pods = append(pods, multinet.PodOf(r.AddRecord))
		}
	}
	return pods, nil
}

// desired returns the status of the container p.Container, a pure function of its records
// and of the files that belong to them. The writer takes the newest container of a pod.
func (c *Cluster) desired(ctx context.Context, p nad.Pod) (kube.Status, error) {
	records, err := c.container(ctx, p.Container)
	if err != nil || len(records) == 0 {
		return kube.Status{}, err
	}
	s := kube.Status{Created: records[0].Created}
	networks, _ := c.networks(records) // tellAdded has said what cannot be read
	s.Annotation, s.Trimmed = status.Annotation(networks)
	count, ours := 0, false
	for _, r := range records {
		count += len(r.Attached)
		s.Static = s.Static || multinet.OfStaticPod(r.AddRecord)
		for _, a := range r.Attached {
			ours = ours || a.Origin != nil
		}
	}
	// A container that was taken over from another program, or attached by a version that
	// recorded no origins, keeps the status that it has.
	s.IfWritten = !ours || c.conf.StatusFor == statusForSelected && count == 1
	return s, nil
}

// ServeHTTP answers multinet.NetworkStatusPath with the annotation network-status
// that the API server has, for people who compare it with the records. An error is a line
// of text: 404 if the pod is gone, 501 if there is no cluster, 503 if the API server is away
// or does not allow it.
func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	p := nad.Pod{Namespace: q.Get("namespace"), Name: q.Get("name"), UID: q.Get("uid")}
	code, text := http.StatusOK, ""
	switch {
	case !c.conf.On():
		code, text = http.StatusNotImplemented, "the daemon has no Kubernetes cluster"
	case !p.Valid():
		code, text = http.StatusBadRequest, "the query names no pod: want namespace, name and uid"
	default:
		var err error
		text, err = c.view.NetworkStatus(r.Context(), p)
		switch {
		case errors.Is(err, kube.ErrGone):
			code, text = http.StatusNotFound, err.Error()
		case err != nil:
			code, text = http.StatusServiceUnavailable, err.Error()
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n")
}
