package contract

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readCases are single objects and lists.
func readCases() []Case {
	cases := []Case{
		{"a pod, a definition and a resource that do not exist are not found", func(ctx context.Context, c *client) error {
			for _, path := range []string{pods + "/" + c.name, definitions + "/" + c.name, pods + "/" + c.name + "/status"} {
				if err := missing().of(c.do(ctx, "GET", path, "", "")); err != nil {
					return err
				}
			}
			return answer{code: http.StatusNotFound}.of(c.do(ctx, "GET", "/apis/none.example/v1/nothing", "", ""))
		}},
		{"a token that the server does not know is unauthorized", func(ctx context.Context, c *client) error {
			stranger := *c
			stranger.token = "unknown"
			var err error
			for _, path := range []string{pods, pods + "?watch=true", pods + "/" + c.name, definitions} {
				err = errors.Join(err, answer{401, metav1.StatusReasonUnauthorized, ""}.of(stranger.do(ctx, "GET", path, "", "")))
			}
			return err
		}},
		{"a pod is created once, with a UID of the server", func(ctx context.Context, c *client) error {
			p, err := c.create(ctx, pods, `{"metadata":{"generateName":"`+c.name+`","uid":"mine"},"spec":{"nodeName":"`+c.name+`","containers":[{"name":"c","image":"i"}]}}`)
			if err != nil {
				return err
			}
			_, err = c.pod(ctx, c.name)
			return errors.Join(err, same("whether the UID is mine", p.Metadata.UID == "mine" || p.Metadata.UID == "", false),
				same("whether the name is generated", len(p.Metadata.Name) > len(c.name), true),
				answer{http.StatusConflict, metav1.StatusReasonAlreadyExists, ""}.of(c.do(ctx, "POST", pods, "", `{"metadata":{"name":"`+c.name+`"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)),
				answer{422, metav1.StatusReasonInvalid, "metadata.name"}.of(c.do(ctx, "POST", pods, "", `{"metadata":{"name":"A/b"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)),
				malformed().of(c.do(ctx, "POST", pods, "", `{"metadata":{"name":"x","namespace":"other"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)))
		}},
		{"a deleted pod is gone", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			return errors.Join(
				answer{code: 200}.of(c.do(ctx, "DELETE", pods+"/"+c.name, "", `{"gracePeriodSeconds":0}`)),
				missing().of(c.do(ctx, "DELETE", pods+"/"+c.name, "", `{"gracePeriodSeconds":0}`)),
				missing().of(c.do(ctx, "GET", pods+"/"+c.name, "", "")))
		}},
		{"a list has a version from which a watch can begin", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			list, err := c.ok(ctx, "GET", pods+"?fieldSelector=spec.nodeName="+c.name, "", "")
			return errors.Join(err, same("whether it has a version", list.Metadata.ResourceVersion != "", true))
		}},
	}
	for _, row := range []struct {
		name, path, query string // NAME is the case's
		want              []string
	}{
		{"by node", allPods, "fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by node in a namespace", pods, "fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by node in another namespace", "/api/v1/namespaces/kube-system/pods", "fieldSelector=spec.nodeName%3DNAME", nil},
		{"by node from the cache", allPods, "resourceVersion=0&resourceVersionMatch=NotOlderThan&fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by name", allPods, "fieldSelector=metadata.name%3DNAME", []string{"NAME"}},
		{"by name and node", allPods, "fieldSelector=metadata.name%3DNAME,spec.nodeName%3DNAME", []string{"NAME"}},
		{"by name, namespace and another node", allPods, "fieldSelector=metadata.name%3DNAME,metadata.namespace%3Ddefault,spec.nodeName%21%3DNAME", nil},
		{"by phase", allPods, "fieldSelector=spec.nodeName%3DNAME,status.phase%3DRunning", nil},
		{"by label", allPods, "labelSelector=l%3D1&fieldSelector=spec.nodeName%3DNAME", []string{"NAME", "NAME-2"}},
		{"by another label", allPods, "labelSelector=l%3D2&fieldSelector=spec.nodeName%3DNAME", nil},
		{"of definitions by name", definitions, "fieldSelector=metadata.name%3DNAME", []string{"NAME"}},
		{"of all definitions by name", "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions", "fieldSelector=metadata.name%3DNAME,metadata.namespace%3Ddefault", []string{"NAME"}},
	} {
		cases = append(cases, Case{"a list " + row.name, func(ctx context.Context, c *client) error {
			_, err1 := c.pod(ctx, c.name)
			_, err2 := c.pod(ctx, c.name+"-2")
			_, err3 := c.definition(ctx, c.name)
			if err := errors.Join(err1, err2, err3); err != nil {
				return err
			}
			list, err := c.ok(ctx, "GET", row.path+"?"+c.named(row.query), "", "")
			var want []string
			for _, name := range row.want {
				want = append(want, c.named(name))
			}
			return errors.Join(err, same("the list", list.names(), want))
		}})
	}
	for _, row := range []struct {
		name, path, query string
		want              answer
	}{
		{"by a field that pods cannot be asked for", pods, "fieldSelector=spec.x%3Dy", malformed()},
		{"by a field that definitions cannot be asked for", definitions, "fieldSelector=spec.config%3Dy", malformed()},
		{"by half a selector", pods, "fieldSelector=spec", malformed()},
		{"by half a label", pods, "labelSelector=a,,%3D", malformed()},
		{"with initial events", pods, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", answer{422, metav1.StatusReasonInvalid, "sendInitialEvents"}},
		{"with a match and no version", pods, "resourceVersionMatch=NotOlderThan", answer{422, metav1.StatusReasonInvalid, "resourceVersionMatch"}},
		{"of a version that is no number", pods, "resourceVersion=x", malformed()},
		{"of definitions of a version that is no number", definitions, "resourceVersion=x", malformed()},
		{"of a version that is still to come", pods, "resourceVersion=999999999", answer{http.StatusGatewayTimeout, metav1.StatusReasonTimeout, ""}},
	} {
		cases = append(cases, Case{"a list " + row.name + " is refused", func(ctx context.Context, c *client) error {
			return row.want.of(c.do(ctx, "GET", row.path+"?"+row.query, "", ""))
		}})
	}
	return cases
}
