package kubetest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/nodetest"
)

func TestContractOfLists(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, path, query string // NAME is the test's
		want              []string
	}{
		{"by node", allPods, "fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by node in a namespace", pods, "fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by node in another namespace", "/api/v1/namespaces/kube-system/pods", "fieldSelector=spec.nodeName%3DNAME", nil},
		{"by node from the cache", allPods, "resourceVersion=0&resourceVersionMatch=NotOlderThan&fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by name and node", allPods, "fieldSelector=metadata.name%3DNAME,spec.nodeName%3DNAME", []string{"NAME"}},
		{"by name, namespace and another node", allPods, "fieldSelector=metadata.name%3DNAME,metadata.namespace%3Ddefault,spec.nodeName%21%3DNAME", nil},
		{"of all definitions by name", "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions", "fieldSelector=metadata.name%3DNAME,metadata.namespace%3Ddefault", []string{"NAME"}},
	} {
		contract(t, row.name, func(c *contractClient) {
			c.pod(c.name)
			c.pod(c.name + "-2")
			c.definition(c.name)
			list := c.object("GET", row.path+"?"+c.named(row.query), "", "")
			var got, want []string
			for _, i := range list.Items {
				got = append(got, i.Metadata.Name)
			}
			for _, name := range row.want {
				want = append(want, c.named(name))
			}
			nodetest.Equal(c, "list", got, want)
			nodetest.Equal(c, "whether it has a version", list.Metadata.ResourceVersion != "", true)
		})
	}
	for _, row := range []struct {
		name, path, query string
		want              answer
	}{
		{"by a field that pods cannot be asked for", pods, "fieldSelector=spec.x%3Dy", malformed()},
		{"by a field that definitions cannot be asked for", definitions, "fieldSelector=spec.config%3Dy", malformed()},
		{"by half a selector", pods, "fieldSelector=spec", malformed()},
		{"with initial events", pods, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", invalid("sendInitialEvents")},
		{"of a version that is no number", definitions, "resourceVersion=x", malformed()},
		{"of a version that is still to come", pods, "resourceVersion=999999999", answer{http.StatusGatewayTimeout, metav1.StatusReasonTimeout, ""}},
		{"in a form that the server does not have", pods, "", answer{http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, ""}},
		{"with a token that the server does not know", pods, "watch=true", answer{401, metav1.StatusReasonUnauthorized, ""}},
	} {
		contract(t, row.name+" is refused", func(c *contractClient) {
			switch row.want.code {
			case http.StatusNotAcceptable:
				c.accept = "text/html"
			case http.StatusUnauthorized:
				c.token = "unknown"
			}
			c.want(row.want, "GET", row.path+"?"+row.query, "", "")
		})
	}
}

func TestContractOfObjects(t *testing.T) {
	t.Parallel()
	contract(t, "what does not exist is not found", func(c *contractClient) {
		for _, path := range []string{pods + "/" + c.name, definitions + "/" + c.name, pods + "/" + c.name + "/status"} {
			c.want(missing(), "GET", path, "", "")
		}
		c.want(answer{code: http.StatusNotFound}, "GET", "/apis/none.example/v1/nothing", "", "")
	})
	contract(t, "a pod that was deleted is gone", func(c *contractClient) {
		path := pods + "/" + c.pod(c.name).Metadata.Name
		c.delete(path)
		c.want(missing(), "GET", path, "", "")
		c.want(missing(), "DELETE", path, "", "")
	})
	contract(t, "a patch of a pod leaves the status", func(c *contractClient) {
		c.pod(c.name)
		got := c.object("PATCH", pods+"/"+c.name, merge, `{"metadata":{"annotations":{"a":"b"}},"status":{"message":"m"}}`)
		nodetest.Equal(c, "annotations", got.Metadata.Annotations, map[string]string{"a": "b"})
		nodetest.Equal(c, "whether it has the message", strings.Contains(string(got.Status), `"message":"m"`), false)
		c.want(invalid("spec"), "PATCH", pods+"/"+c.name, merge, `{"spec":{"nodeName":"other"}}`)
	})
	contract(t, "a definition is created, patched and deleted", func(c *contractClient) {
		d, path := c.definition(c.name), definitions+"/"+c.name
		got := c.object("PATCH", path, merge, `{"spec":{"config":"{\"a\":1}"}}`)
		nodetest.Equal(c, "config", got.Spec.Config, `{"a":1}`)
		nodetest.Equal(c, "UID", got.Metadata.UID, d.Metadata.UID)
		c.want(conflict(), "PATCH", path, merge, `{"metadata":{"resourceVersion":"`+d.Metadata.ResourceVersion+`"}}`)
		c.want(invalid("metadata.uid"), "PATCH", path, merge, `{"metadata":{"uid":"other"}}`)
		c.delete(path)
		c.want(missing(), "GET", path, "", "")
	})
	const whole = `{"metadata":{"name":"NAME"},"eventTime":"2026-01-02T03:04:05.678901Z","type":"Normal","reason":"R","action":"A",` +
		`"reportingController":"c.example/x","reportingInstance":"i","note":"n","regarding":{"kind":"Pod","namespace":"default","name":"p"}}`
	for _, row := range []struct{ name, old, new, cause string }{
		{"is created", "", "", ""},
		{"needs its time", `"eventTime":"2026-01-02T03:04:05.678901Z",`, ``, "eventTime"},
		{"needs a controller", `"c.example/x"`, `""`, "reportingController"},
		{"needs an instance", `"i"`, `""`, "reportingInstance"},
		{"needs an action", `"A"`, `""`, "action"},
		{"needs a reason", `"R"`, `""`, "reason"},
		{"needs a type", `"Normal"`, `"Other"`, "type"},
		{"has no long reason", `"R"`, `"` + strings.Repeat("r", 129) + `"`, "reason"},
		{"has no long note", `"n"`, `"` + strings.Repeat("n", 1025) + `"`, "message"},
	} {
		contract(t, "an event "+row.name, func(c *contractClient) {
			body := c.named(strings.Replace(whole, row.old, row.new, 1))
			if row.cause == "" {
				c.create(events, body)
				return
			}
			c.want(invalid(row.cause), "POST", events, "", body)
		})
	}
}

// Updates of resourceclaims/status, as a driver makes them. The parameters in the allocation
// are no canonical JSON.
func TestContractOfAClaimsStatus(t *testing.T) {
	t.Parallel()
	const allocated = `"allocation":{"devices":{"results":[{"request":"r","driver":"d.example","pool":"p","device":"net"}],` +
		`"config":[{"source":"FromClaim","opaque":{"driver":"d.example","parameters":{"b":1.0,"a":1e3}}}]}}`
	device := func(name, more string) string {
		return allocated + `,"devices":[{"driver":"d.example","pool":"p","device":"` + name + `","conditions":[]` + more + `}]`
	}
	addresses := strings.TrimSuffix(strings.Repeat(`"192.0.2.1/24",`, 17), ",")
	for _, row := range []struct {
		name, version, status string // VERSION is that of the claim
		want                  answer
	}{
		{"of an allocated device is taken", "VERSION", device("net", ""), done()},
		{"of an old version conflicts", "1", allocated, conflict()},
		{"of another device is invalid", "VERSION", device("other", ""), invalid("status.devices[0]")},
		{"with another allocation is invalid", "VERSION", strings.Replace(allocated, "net", "other", 1), invalid("status.allocation")},
		{"with data of 10 KiB and a byte is invalid", "VERSION", device("net", `,"data":{"a":"`+strings.Repeat("x", 10<<10-7)+`"}`), invalid("status.devices[0].data")},
		{"with 17 addresses is invalid", "VERSION", device("net", `,"networkData":{"ips":[`+addresses+`]}`), invalid("status.devices[0].networkData.ips")},
	} {
		contract(t, row.name, func(c *contractClient) {
			path := claims + "/" + c.name
			update := func(want answer, version, status string) {
				c.want(want, "PUT", path+"/status", "", fmt.Sprintf(
					`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q,"namespace":"default","resourceVersion":%q},"status":{%s}}`, c.name, version, status))
			}
			made := c.create(claims, fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q},
				"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}}`, c.name))
			update(done(), made.Metadata.ResourceVersion, allocated)
			before := c.object("GET", path, "", "")
			update(row.want, strings.Replace(row.version, "VERSION", before.Metadata.ResourceVersion, 1), row.status)
			after := c.object("GET", path, "", "")
			nodetest.Equal(c, "allocation", allocationOf(c, after.Status), allocationOf(c, before.Status))
		})
	}
}

// allocationOf returns the allocation in the status of a claim, as it is written.
func allocationOf(c *contractClient, status json.RawMessage) string {
	c.Helper()
	var s struct {
		Allocation json.RawMessage `json:"allocation"`
	}
	nodetest.OK(c, json.Unmarshal(status, &s))
	return string(s.Allocation)
}

// initial is the query of a watch that begins with all objects.
const initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"

// Watches of the pods of one node, and of a definition. A pod on a node changes before it is
// deleted: it gets a deletionTimestamp.
func TestContractOfWatches(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name, path, query string
		create            func(*contractClient, string) contractObject
		deleted           []string
	}{
		{"pods of a node", pods, "fieldSelector=spec.nodeName%3DNAME&", (*contractClient).pod, []string{"MODIFIED 2", "DELETED 2"}},
		{"a definition", definitions, "fieldSelector=metadata.name%3DNAME&", (*contractClient).definition, []string{"DELETED 2"}},
	} {
		for _, row := range []struct {
			name, query string // VERSION: that of a list after the first change
			want        []string
		}{
			{"with initial events begins with the objects and a bookmark", initial + "&allowWatchBookmarks=true", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"with initial events and no bookmarks begins with the objects", initial, []string{"ADDED 1", "MODIFIED 2"}},
			{"with initial events of a version begins with the objects", initial + "&allowWatchBookmarks=true&resourceVersion=VERSION", []string{"ADDED 1", "END", "MODIFIED 2"}},
			{"of version 0 begins with the objects", "resourceVersion=0", []string{"ADDED 1", "MODIFIED 2"}},
			{"of the version of a list begins with what comes after", "allowWatchBookmarks=true&resourceVersion=VERSION", []string{"MODIFIED 2"}},
		} {
			contract(t, kind.name+" "+row.name, func(c *contractClient) {
				path := kind.path + "/" + kind.create(c, c.name).Metadata.Name
				c.annotate(path, "1")
				list := c.object("GET", kind.path, "", "")
				w := c.watch(kind.path, kind.query+strings.ReplaceAll(row.query, "VERSION", list.Metadata.ResourceVersion))
				c.annotate(path, "2")
				c.delete(path)
				w.expect(append(row.want, kind.deleted...)...)
			})
		}
		contract(t, kind.name+" sees one with another UID as deleted and added", func(c *contractClient) {
			old := kind.create(c, c.name)
			w := c.watch(kind.path, kind.query+"resourceVersion="+old.Metadata.ResourceVersion)
			c.delete(kind.path + "/" + c.name)
			kind.create(c, c.name)
			for range len(kind.deleted) - 1 {
				if e, _, o := w.next(); e != "MODIFIED" || o.Metadata.DeletionTimestamp == nil {
					c.Errorf("%s %+v", e, o)
				}
			}
			a, _, gone := w.next()
			b, _, is := w.next()
			if a != "DELETED" || gone.Metadata.UID != old.Metadata.UID || gone.Metadata.ResourceVersion == old.Metadata.ResourceVersion {
				c.Errorf("%s %+v", a, gone)
			}
			if b != "ADDED" || is.Metadata.UID == old.Metadata.UID {
				c.Errorf("%s %+v", b, is)
			}
		})
		for _, row := range []struct {
			name, query string
			want        answer
		}{
			{"with initial events and no match", "sendInitialEvents=true", invalid("resourceVersionMatch")},
			{"by an unknown field", "fieldSelector=spec.x%3Dy", malformed()},
			{"of a version that is no number", "resourceVersion=x", answer{code: http.StatusInternalServerError}},
		} {
			contract(t, kind.name+" "+row.name+" is refused", func(c *contractClient) {
				c.want(row.want, "GET", kind.path+"?watch=true&"+row.query, "", "")
			})
		}
	}
	contract(t, "ends after its time, and what comes before is bookmarks", func(c *contractClient) {
		w := c.watch(definitions, "fieldSelector=metadata.name%3DNAME&"+initial+"&allowWatchBookmarks=true&timeoutSeconds=1")
		w.expect("END")
		for {
			switch e, _, o := w.next(); {
			case e == "":
				return
			case e != "BOOKMARK" || o.Metadata.ResourceVersion == "":
				c.Fatalf("%s %+v", e, o)
			}
		}
	})
	// A new cluster has not forgotten its pods since version 1, but the definitions from
	// before their CRD.
	contract(t, "from a version that is forgotten is told so", func(c *contractClient) {
		w := c.watch(definitions, "resourceVersion=1")
		e, object, _ := w.next()
		var s metav1.Status
		nodetest.OK(c, json.Unmarshal(object, &s))
		end, _, _ := w.next()
		if e != "ERROR" || s.Code != http.StatusGone || s.Reason != metav1.StatusReasonExpired || end != "" {
			c.Errorf("%s %+v %s", e, s, end)
		}
	})
}
