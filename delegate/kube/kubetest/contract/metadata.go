package contract

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onlyMetadata asks for the metadata of an object instead of all of it.
const onlyMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// accepting returns a client with another Accept header.
func (c *client) accepting(header string) *client {
	other := *c
	other.accept = header
	return &other
}

// kind makes a request, and returns the kind of the answer and whether that has a spec.
func (c *client) kind(ctx context.Context, method, path, contentType, body string) (kind string, o object, spec bool, err error) {
	r, err := c.do(ctx, method, path, contentType, body)
	if err != nil {
		return "", o, false, err
	}
	if err := (answer{code: http.StatusOK}).of(r, nil); err != nil {
		return "", o, false, err
	}
	var got struct {
		metav1.TypeMeta
		Spec *struct{} `json:"spec"`
	}
	err = errors.Join(json.Unmarshal(r.body, &got), json.Unmarshal(r.body, &o))
	return got.GroupVersionKind().String(), o, got.Spec != nil, err
}

// metadataCases are answers without a spec and a status.
func metadataCases() []Case {
	const partial = "meta.k8s.io/v1, Kind=PartialObjectMetadata"
	var cases []Case
	for _, row := range []struct{ name, method, path, body string }{
		{"a patch of pods/status", "PATCH", pods + "/NAME/status", `{"metadata":{"annotations":{"a":"b"}}}`},
		{"a patch of a definition", "PATCH", definitions + "/NAME", `{"metadata":{"annotations":{"a":"b"}}}`},
		{"a get of a pod", "GET", pods + "/NAME", ""},
		{"a get of a definition", "GET", definitions + "/NAME", ""},
	} {
		cases = append(cases, Case{row.name + " is answered with the metadata, if that is asked for", func(ctx context.Context, c *client) error {
			_, err1 := c.pod(ctx, c.name)
			_, err2 := c.definition(ctx, c.name)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			kind, o, spec, err := c.accepting(onlyMetadata).kind(ctx, row.method, c.named(row.path), merge, row.body)
			want := map[string]string(nil)
			if row.body != "" {
				want = map[string]string{"a": "b"}
			}
			return errors.Join(err, same("the kind", kind, partial), same("whether it has a spec", spec, false),
				same("the name", o.Metadata.Name, c.name), same("whether it has a version", o.Metadata.ResourceVersion != "", true),
				same("the annotations", o.Metadata.Annotations, want))
		}})
	}
	return append(cases,
		Case{"a kind that the server does not know is passed over", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			kind, _, spec, err := c.accepting("application/json;as=Other;g=meta.k8s.io;v=v1, application/json").kind(ctx, "GET", pods+"/"+c.name, "", "")
			return errors.Join(err, same("the kind", kind, "/v1, Kind=Pod"), same("whether it has a spec", spec, true))
		}},
		Case{"an answer of a type that the server does not have is not acceptable", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			html := c.accepting("text/html")
			want := answer{http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, ""}
			return errors.Join(want.of(html.do(ctx, "GET", pods+"/"+c.name, "", "")), want.of(html.do(ctx, "GET", pods+"?watch=true", "", "")))
		}},
		Case{"a list is not the metadata of an object", func(ctx context.Context, c *client) error {
			return answer{http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, ""}.of(c.accepting(onlyMetadata+", application/json").do(ctx, "GET", pods, "", ""))
		}},
		Case{"a refusal is whole even where only the metadata is asked for", func(ctx context.Context, c *client) error {
			if _, err := c.pod(ctx, c.name); err != nil {
				return err
			}
			return errors.Join(
				immutable().of(c.accepting(onlyMetadata).do(ctx, "PATCH", pods+"/"+c.name+"/status", merge, `{"metadata":{"uid":"other"}}`)),
				missing().of(c.accepting(onlyMetadata).do(ctx, "PATCH", pods+"/"+c.name+"-2/status", merge, `{}`)))
		}},
	)
}
