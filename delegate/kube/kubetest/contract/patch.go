package contract

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patchCases are patches of pods/status: that of another pod, a late one, a wrong one.
func patchCases() []Case {
	var cases []Case
	for _, row := range []struct {
		name, kind, patch string // UID, VERSION and NAME are those of the pod
		want              answer
	}{
		{"with its UID, it changes the annotation", merge, `{"metadata":{"uid":"UID","annotations":{"a":"b"}}}`, answer{code: 200}},
		{"without a UID, it changes the annotation", merge, `{"metadata":{"annotations":{"a":"b"}}}`, answer{code: 200}},
		{"with an empty UID, it changes the annotation", merge, `{"metadata":{"uid":"","annotations":{"a":"b"}}}`, answer{code: 200}},
		{"with another UID, it is invalid", merge, `{"metadata":{"uid":"other","annotations":{"a":"b"}}}`, immutable()},
		{"with another UID, a strategic one is invalid", strategic, `{"metadata":{"uid":"other","annotations":{"a":"b"}}}`, immutable()},
		{"with another UID, an applied one is invalid", apply, `{"apiVersion":"v1","kind":"Pod","metadata":{"uid":"other","annotations":{"a":"b"}}}`, immutable()},
		{"a strategic one changes the annotation", strategic, `{"metadata":{"uid":"UID","annotations":{"a":"b"}}}`, answer{code: 200}},
		{"with the resource version, it changes the annotation", merge, `{"metadata":{"resourceVersion":"VERSION","annotations":{"a":"b"}}}`, answer{code: 200}},
		{"with an old resource version, it conflicts", merge, `{"metadata":{"resourceVersion":"1","annotations":{"a":"b"}}}`, conflict()},
		{"with an old resource version and another UID, it conflicts", merge, `{"metadata":{"uid":"other","resourceVersion":"1"}}`, conflict()},
		{"a JSON patch whose test fails is invalid", jsonPatch, `[{"op":"test","path":"/metadata/uid","value":"other"}]`, invalid()},
		{"a JSON patch whose test holds changes the annotation", jsonPatch, `[{"op":"test","path":"/metadata/uid","value":"UID"},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`, answer{code: 200}},
		{"a JSON patch that removes what is not there is invalid", jsonPatch, `[{"op":"remove","path":"/metadata/annotations/none"}]`, invalid()},
		{"a JSON patch that is none is malformed", jsonPatch, `{"metadata":{}}`, malformed()},
		{"that is not JSON is malformed", merge, `{"metadata":`, malformed()},
		{"that is not an object is malformed", merge, `[]`, malformed()},
		{"that is a string is malformed", merge, `"a"`, malformed()},
		{"that is empty is malformed", merge, ``, malformed()},
		{"with a number as an annotation is invalid", merge, `{"metadata":{"annotations":{"a":1}}}`, answer{422, metav1.StatusReasonInvalid, "patch"}},
		{"with a string for annotations is invalid", merge, `{"metadata":{"annotations":"a"}}`, answer{422, metav1.StatusReasonInvalid, "patch"}},
		{"with another name is malformed", merge, `{"metadata":{"name":"other"}}`, malformed()},
		{"with another namespace is malformed", merge, `{"metadata":{"namespace":"other"}}`, malformed()},
		{"with another kind is invalid", merge, `{"kind":"Node"}`, answer{422, metav1.StatusReasonInvalid, "patch"}},
		{"with annotations of 256 KiB is invalid", merge, `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 1<<18) + `"}}}`, answer{422, metav1.StatusReasonInvalid, "metadata.annotations"}},
		{"with a key that no annotation can have is invalid", merge, `{"metadata":{"annotations":{"a/b/c":"x"}}}`, answer{422, metav1.StatusReasonInvalid, "metadata.annotations"}},
		{"with a creation time leaves it", merge, `{"metadata":{"creationTimestamp":null,"annotations":{"a":"b"}}}`, answer{code: 200}},
		{"of an unknown kind is of an unsupported type", "text/plain", `{}`, answer{http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, ""}},
	} {
		cases = append(cases, Case{"a patch of pods/status " + row.name, func(ctx context.Context, c *client) error {
			p, err := c.pod(ctx, c.name)
			if err != nil {
				return err
			}
			body := strings.NewReplacer("UID", string(p.Metadata.UID), "VERSION", p.Metadata.ResourceVersion, "NAME", c.name).Replace(row.patch)
			if err := row.want.of(c.do(ctx, "PATCH", pods+"/"+c.name+"/status?fieldManager=contract", row.kind, body)); err != nil {
				return err
			}
			got, err := c.ok(ctx, "GET", pods+"/"+c.name, "", "")
			if err != nil {
				return err
			}
			want := ""
			if row.want.code == http.StatusOK {
				want = "b"
			}
			return errors.Join(
				same("the annotation", got.Metadata.Annotations["a"], want),
				same("the UID", got.Metadata.UID, p.Metadata.UID),
				same("the creation time", got.Metadata.CreationTimestamp, p.Metadata.CreationTimestamp),
				same("whether the version is another", got.Metadata.ResourceVersion != p.Metadata.ResourceVersion, want != ""))
		}})
	}
	return append(cases,
		Case{"a patch of pods/status of a pod that is gone finds nothing", func(ctx context.Context, c *client) error {
			return missing().of(c.do(ctx, "PATCH", pods+"/"+c.name+"/status", merge, `{"metadata":{"uid":"u"}}`))
		}},
		Case{"a patch that changes nothing makes no version", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			first, err1 := c.annotate(ctx, pods+"/"+c.name+"/status", "b")
			second, err2 := c.annotate(ctx, pods+"/"+c.name+"/status", "b")
			return errors.Join(err1, err2, same("the version", second.Metadata.ResourceVersion, first.Metadata.ResourceVersion))
		}},
		Case{"a merge patch with null removes the annotation, and no other", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			path := pods + "/" + c.name + "/status"
			_, err1 := c.ok(ctx, "PATCH", path, merge, `{"metadata":{"annotations":{"a":"b","c":"d"}}}`)
			got, err2 := c.ok(ctx, "PATCH", path, merge, `{"metadata":{"annotations":{"a":null}}}`)
			return errors.Join(err1, err2, same("annotations", got.Metadata.Annotations, map[string]string{"c": "d"}))
		}},
		Case{"a patch of pods/status changes labels and the status, and leaves the spec", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			got, err := c.ok(ctx, "PATCH", pods+"/"+c.name+"/status", merge,
				`{"metadata":{"labels":{"l":"2"}},"spec":{"nodeName":"other"},"status":{"message":"m"}}`)
			if err == nil && !strings.Contains(string(got.Status), `"message":"m"`) {
				err = fmt.Errorf("the status is %s", got.Status)
			}
			return errors.Join(err, same("labels", got.Metadata.Labels, map[string]string{"l": "2"}), same("node", got.Spec.NodeName, c.name))
		}},
		Case{"a patch of pods changes annotations and leaves the status", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			got, err := c.ok(ctx, "PATCH", pods+"/"+c.name, merge, `{"metadata":{"annotations":{"a":"b"}},"status":{"message":"m"}}`)
			if err == nil && strings.Contains(string(got.Status), `"message":"m"`) {
				err = fmt.Errorf("the status is %s", got.Status)
			}
			return errors.Join(err, same("annotations", got.Metadata.Annotations, map[string]string{"a": "b"}))
		}},
		Case{"a patch of pods that binds it to another node is invalid", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			return answer{422, metav1.StatusReasonInvalid, "spec"}.of(c.do(ctx, "PATCH", pods+"/"+c.name, merge, `{"spec":{"nodeName":"other"}}`))
		}},
		Case{"an applied patch conflicts with another writer unless it is forced", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			path := pods + "/" + c.name + "/status"
			if _, err := c.annotate(ctx, path+"?fieldManager=first", "b"); err != nil {
				return err
			}
			patch := `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"a":"c"}}}`
			if err := conflict().of(c.do(ctx, "PATCH", path+"?fieldManager=second", apply, patch)); err != nil {
				return err
			}
			forced, err1 := c.ok(ctx, "PATCH", path+"?fieldManager=second&force=true", apply, patch)
			without, err2 := c.ok(ctx, "PATCH", path+"?fieldManager=second", apply, `{"apiVersion":"v1","kind":"Pod","metadata":{}}`)
			return errors.Join(err1, err2, same("annotation", forced.Metadata.Annotations["a"], "c"), same("annotations", len(without.Metadata.Annotations), 0))
		}},
	)
}
