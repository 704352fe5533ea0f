package kube

import (
	"context"
	"net/http"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Run sends Events, one after the other, until ctx ends. It then takes up to two seconds
// more for those that wait, and drops the rest.
func (e *Events) Run(ctx context.Context) {
	if e == nil {
		return
	}
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(eventFlush, cancel) })()
	for {
		select {
		case ev := <-e.queue:
			e.send(late, ev)
			continue
		case <-ctx.Done():
		}
		select {
		case ev := <-e.queue:
			e.send(late, ev)
		default:
			return
		}
	}
}

// send sends an Event and counts it.
func (e *Events) send(ctx context.Context, ev event) {
	sent := e.try(ctx, ev)
	e.mu.Lock()
	defer e.mu.Unlock()
	if sent {
		e.stats.Sent++
		return
	}
	e.stats.Dropped++
	delete(e.told, ev.said())
}

// try sends an Event until the API server accepts or refuses it, it is too old, or ctx
// ends.
func (e *Events) try(ctx context.Context, ev event) (sent bool) {
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
		case <-ctx.Done():
			return false
		}
	}
}

// post sends an Event once.
func (e *Events) post(ctx context.Context, ev event) error {
	namespace := ev.about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := e.client.do(ctx, http.MethodPost, func(q *rest.Request) {
		q.Namespace(namespace).Resource("events").Body(&eventsv1.Event{
			ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: ev.name},
			EventTime:           metav1.NewMicroTime(ev.at),
			ReportingController: e.controller,
			ReportingInstance:   e.instance,
			Action:              ev.action,
			Reason:              string(ev.reason),
			Regarding:           ev.about,
			Note:                ev.note,
			Type:                ev.reason.kind(),
		})
	}).Into(&eventsv1.Event{})
	if apierrors.IsAlreadyExists(err) {
		return nil // it was sent before, and the answer was lost
	}
	return err
}
