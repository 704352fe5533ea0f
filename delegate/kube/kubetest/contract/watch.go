package contract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// named returns the text with the case's name for NAME.
func (c *client) named(text string) string { return strings.ReplaceAll(text, "NAME", c.name) }

// initial is the query of a watch that begins with all objects.
const initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"

// watchCases are watches of the pods of one node, and of a definition. A pod on a node
// changes before it is deleted: it gets a deletionTimestamp.
func watchCases() []Case {
	var cases []Case
	for _, kind := range []struct {
		name, path, query string
		create            func(*client, context.Context, string) (object, error)
		deleted           []string
	}{
		{"pods of a node", pods, "fieldSelector=spec.nodeName%3DNAME&", (*client).pod, []string{"MODIFIED 2", "DELETED 2"}},
		{"a definition", definitions, "fieldSelector=metadata.name%3DNAME&", (*client).definition, []string{"DELETED 2"}},
	} {
		watch := func(ctx context.Context, c *client, query string) (*stream, error) {
			return c.watch(ctx, kind.path, c.named(kind.query)+query)
		}
		for _, row := range []struct {
			name, query string // VERSION: that of a list after the first change
			want        []string
		}{
			{"with initial events begins with the objects and a bookmark", initial + "&allowWatchBookmarks=true", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"with initial events and no bookmarks begins with the objects", initial, []string{"ADDED 1", "MODIFIED 2"}},
			{"with initial events of a version begins with newer objects", initial + "&allowWatchBookmarks=true&resourceVersion=VERSION", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"with initial events of version 0 begins with the objects", initial + "&allowWatchBookmarks=true&resourceVersion=0", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"without a version begins with the objects", "", []string{"ADDED 1", "MODIFIED 2"}},
			{"of version 0 begins with the objects", "resourceVersion=0", []string{"ADDED 1", "MODIFIED 2"}},
			{"of the version of a list begins with what comes after", "allowWatchBookmarks=true&resourceVersion=VERSION", []string{"MODIFIED 2"}},
			{"that asks for no initial events begins with what comes after", "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=VERSION", []string{"MODIFIED 2"}},
		} {
			cases = append(cases, Case{"a watch of " + kind.name + " " + row.name, func(ctx context.Context, c *client) error {
				path := kind.path + "/" + c.name
				_, err1 := kind.create(c, ctx, c.name)
				_, err2 := c.annotate(ctx, path, "1")
				list, err3 := c.ok(ctx, "GET", kind.path, "", "")
				if err := errors.Join(err1, err2, err3); err != nil {
					return err
				}
				w, err := watch(ctx, c, strings.ReplaceAll(row.query, "VERSION", list.Metadata.ResourceVersion))
				if err != nil {
					return err
				}
				defer w.close()
				if _, err := c.annotate(ctx, path, "2"); err != nil {
					return err
				}
				if _, err := c.ok(ctx, "DELETE", path, "", `{"gracePeriodSeconds":0}`); err != nil {
					return err
				}
				return w.expect(slices.Concat(row.want, kind.deleted)...)
			}})
		}
		cases = append(cases,
			Case{"a watch of " + kind.name + " ends after its time, and what comes before is bookmarks", func(ctx context.Context, c *client) error {
				w, err := watch(ctx, c, initial+"&allowWatchBookmarks=true&timeoutSeconds=3")
				if err != nil {
					return err
				}
				defer w.close()
				if err := w.expect("END"); err != nil {
					return err
				}
				for {
					e, o, err := w.next()
					if errors.Is(err, io.EOF) {
						return nil
					}
					if err := errors.Join(err, same("the event", e.Type, "BOOKMARK"), same("whether it has a version", o.Metadata.ResourceVersion != "", true)); err != nil {
						return err
					}
				}
			}},
			Case{"a watch of " + kind.name + " sees one with another UID as deleted and added", func(ctx context.Context, c *client) error {
				old, err := kind.create(c, ctx, c.name)
				if err != nil {
					return err
				}
				w, err := watch(ctx, c, "resourceVersion="+old.Metadata.ResourceVersion)
				if err != nil {
					return err
				}
				defer w.close()
				if _, err := c.ok(ctx, "DELETE", kind.path+"/"+c.name, "", `{"gracePeriodSeconds":0}`); err != nil {
					return err
				}
				if _, err := kind.create(c, ctx, c.name); err != nil {
					return err
				}
				for range len(kind.deleted) - 1 {
					e, o, err := w.next()
					if err := errors.Join(err, same("the event", e.Type, "MODIFIED"), same("whether it is deleted", o.Metadata.DeletionTimestamp != nil, true)); err != nil {
						return err
					}
				}
				a, gone, err1 := w.next()
				b, is, err2 := w.next()
				return errors.Join(err1, err2, same("events", []string{a.Type, b.Type}, []string{"DELETED", "ADDED"}),
					same("the UID of the deleted one", gone.Metadata.UID, old.Metadata.UID),
					same("whether it has a version of its own", gone.Metadata.ResourceVersion == old.Metadata.ResourceVersion, false),
					same("whether the UIDs are the same", is.Metadata.UID == old.Metadata.UID, false))
			}},
		)
		for _, row := range []struct {
			name, query string
			want        answer
		}{
			{"with initial events and no match", "sendInitialEvents=true", answer{422, metav1.StatusReasonInvalid, "resourceVersionMatch"}},
			{"with a match and no initial events", "resourceVersionMatch=NotOlderThan", answer{422, metav1.StatusReasonInvalid, "resourceVersionMatch"}},
			{"by an unknown field", "fieldSelector=spec.x%3Dy", malformed()},
			{"of a version that is no number", "resourceVersion=x", answer{code: http.StatusInternalServerError}},
		} {
			cases = append(cases, Case{"a watch of " + kind.name + " " + row.name + " is refused", func(ctx context.Context, c *client) error {
				return row.want.of(c.do(ctx, "GET", kind.path+"?watch=true&"+row.query, "", ""))
			}})
		}
	}
	return append(cases,
		// A new cluster has not forgotten its pods since version 1, but the definitions
		// from before their CRD.
		Case{"a watch from a version that is forgotten is told so", func(ctx context.Context, c *client) error {
			w, err := c.watch(ctx, definitions, "resourceVersion=1")
			if err != nil {
				return err
			}
			defer w.close()
			e, _, err := w.next()
			if err != nil {
				return err
			}
			var s metav1.Status
			if err := json.Unmarshal(e.Object, &s); err != nil {
				return err
			}
			_, _, end := w.next()
			return errors.Join(same("the event", e.Type, "ERROR"), same("its code", s.Code, http.StatusGone),
				same("its reason", s.Reason, metav1.StatusReasonExpired), same("whether the watch ends", errors.Is(end, io.EOF), true))
		}},
		Case{"a watch sees a pod that begins and ceases to match as added and deleted", func(ctx context.Context, c *client) error {
			p, err := c.pod(ctx, c.name)
			if err != nil {
				return err
			}
			w, err := c.watch(ctx, allPods, c.named("fieldSelector=spec.nodeName%3DNAME,status.phase%3DRunning&resourceVersion=")+p.Metadata.ResourceVersion)
			if err != nil {
				return err
			}
			defer w.close()
			for i, phase := range []string{"Running", "Running", "Failed", "Running"} {
				if _, err := c.ok(ctx, "PATCH", pods+"/"+c.name+"/status", merge, fmt.Sprintf(`{"metadata":{"annotations":{"a":"%d"}},"status":{"phase":%q}}`, i, phase)); err != nil {
					return err
				}
			}
			return w.expect("ADDED 0", "MODIFIED 1", "DELETED 1", "ADDED 3")
		}})
}
