package kubetest

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// listOptions reads and checks the options of a list or a watch.
func listOptions(q *http.Request, initialEvents bool) (*internalversion.ListOptions, error) {
	opts := new(internalversion.ListOptions)
	if err := internalscheme.ParameterCodec.DecodeParameters(q.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if errs := validation.ValidateListOptions(opts, initialEvents); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return opts, nil
}

// matcher returns a function that reports whether the request asks for an object.
func matcher(res resource, r Request, opts *internalversion.ListOptions) (func(object) bool, error) {
	f, l := opts.FieldSelector, opts.LabelSelector
	if f == nil {
		f = fields.Everything()
	}
	if l == nil {
		l = labels.Everything()
	}
	known := res.fields(nil)
	for _, q := range f.Requirements() {
		if !known.Has(q.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", q.Field))
		}
	}
	return func(o object) bool {
		return (r.Namespace == "" || r.Namespace == o.GetNamespace()) &&
			l.Matches(labels.Set(o.GetLabels())) && f.Matches(res.fields(o))
	}, nil
}

// check parses a resource version. It is an error if the server has not reached it.
// Called with mu held.
func (s *Server) check(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	v, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest("Invalid value: " + strconv.Quote(version))
	}
	if v > s.version {
		err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", v, s.version), 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{
			{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"},
		}
		return 0, err
	}
	return v, nil
}

func expired(version, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, oldest))
}

// A watcher is a watch that is open.
type watcher struct {
	request   Request
	resource  resource
	bookmarks bool
	match     func(object) bool
	cut       chan struct{} // closed by CutWatches

	next int // index of the first change in the history that was not sent
	out  http.ResponseWriter
	info runtime.SerializerInfo
}

func (h handler) watch(out http.ResponseWriter, q *http.Request, r Request, res resource) {
	refused := h.s.broken(r, func(f Fault) bool { return f.NoSendInitialEvents })
	opts, err := listOptions(q, !refused)
	if err != nil {
		fail(out, err)
		return
	}
	match, err := matcher(res, r, opts)
	if err != nil {
		fail(out, err)
		return
	}
	info, partial, ok := accepted(q, res)
	if !ok || partial {
		fail(out, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "", "", 0, true))
		return
	}
	w := &watcher{
		request: r, resource: res, bookmarks: opts.AllowWatchBookmarks, match: match,
		cut: make(chan struct{}), out: out, info: info,
	}
	first, err := h.open(w, opts)
	if err != nil && !apierrors.IsResourceExpired(err) {
		fail(out, err)
		return
	}
	defer h.close(w)
	contentType := info.MediaType
	if !info.StreamSerializer.EncodesAsText {
		contentType += ";stream=watch"
	}
	out.Header().Set("Content-Type", contentType)
	out.WriteHeader(http.StatusOK)
	if err != nil {
		w.send(watch.Event{Type: watch.Error, Object: statusOf(err)})
		return
	}
	w.flush()
	var end <-chan time.Time
	if opts.TimeoutSeconds != nil {
		t := time.NewTimer(time.Duration(*opts.TimeoutSeconds) * time.Second)
		defer t.Stop()
		end = t.C
	}
	h.stream(w, q, first, end)
}

// stream sends events until the watch ends.
func (h handler) stream(w *watcher, q *http.Request, first []watch.Event, end <-chan time.Time) {
	for {
		events, version, silent, changed := h.pending(w)
		if !silent {
			for _, e := range slices.Concat(first, events) {
				if !w.send(e) {
					return
				}
			}
			first = nil
		}
		select {
		case <-changed:
		case <-end: // a nil channel: no limit
			if w.bookmarks && !silent {
				w.send(w.bookmark(version, nil))
			}
			return
		case <-w.cut:
			panic(http.ErrAbortHandler)
		case <-q.Context().Done():
			return
		case <-h.down:
			panic(http.ErrAbortHandler)
		}
	}
}

// open registers the watch, sets its position in the history, and returns the initial
// events.
func (h handler) open(w *watcher, opts *internalversion.ListOptions) ([]watch.Event, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	version, err := h.s.check(opts.ResourceVersion)
	if apierrors.IsBadRequest(err) {
		err = apierrors.NewInternalError(err) // as the real server, for watches only
	}
	if err != nil {
		return nil, err
	}
	whole := version == 0 && opts.SendInitialEvents == nil || opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if !whole && version != 0 && version < h.s.forgotten {
		return nil, expired(version, h.s.forgotten)
	}
	h.s.watches = append(h.s.watches, w)
	h.s.change()
	w.next = len(h.s.history)
	if !whole {
		if version != 0 {
			later := func(c change) bool { return c.version > version }
			if i := slices.IndexFunc(h.s.history, later); i >= 0 {
				w.next = i
			}
		}
		return nil, nil
	}
	var first []watch.Event
	for _, o := range h.s.list(w.match, w.resource.Resource) {
		first = append(first, watch.Event{Type: watch.Added, Object: o})
	}
	if opts.SendInitialEvents != nil && w.bookmarks {
		first = append(first, w.bookmark(h.s.version, map[string]string{metav1.InitialEventsAnnotationKey: "true"}))
	}
	return first, nil
}

func (h handler) close(w *watcher) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.watches = slices.DeleteFunc(h.s.watches, func(o *watcher) bool { return o == w })
	h.s.change()
}

// pending returns the events that the watch has not sent, the version that it has
// reached with them, and a channel that is closed at the next change. A silent watch has
// no events.
func (h handler) pending(w *watcher) (events []watch.Event, version int64, silent bool, changed <-chan struct{}) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	changed = h.s.changed
	select {
	case <-w.cut:
		return nil, 0, true, nil // nothing from after CutWatches
	default:
	}
	if h.s.brokenLocked(w.request, func(f Fault) bool { return f.Silent }) {
		return nil, 0, true, changed
	}
	for ; w.next < len(h.s.history); w.next++ {
		c := h.s.history[w.next]
		if c.resource == w.resource.Resource {
			if e, ok := c.event(w.match); ok {
				events = append(events, e)
			}
		}
	}
	return events, h.s.version, false, changed
}

func (w *watcher) bookmark(version int64, annotations map[string]string) watch.Event {
	o := w.resource.make()
	o.GetObjectKind().SetGroupVersionKind(w.resource.gvk())
	o.SetResourceVersion(strconv.FormatInt(version, 10))
	o.SetAnnotations(annotations)
	return watch.Event{Type: watch.Bookmark, Object: o}
}

// send sends one event, and reports whether it could.
func (w *watcher) send(e watch.Event) bool {
	var object, frame bytes.Buffer
	if err := w.info.Serializer.Encode(e.Object, &object); err != nil {
		return false
	}
	out := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: object.Bytes()}}
	stream := w.info.StreamSerializer
	if err := stream.Encode(out, &frame); err != nil {
		return false
	}
	if _, err := stream.NewFrameWriter(w.out).Write(frame.Bytes()); err != nil {
		return false
	}
	w.flush()
	return true
}

func (w *watcher) flush() { _ = http.NewResponseController(w.out).Flush() }
