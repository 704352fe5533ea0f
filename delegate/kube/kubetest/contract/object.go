package contract

import (
	"context"
	"errors"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eventCases are events of version events.k8s.io/v1.
func eventCases() []Case {
	const whole = `{"metadata":{"name":"NAME"},"eventTime":"2026-01-02T03:04:05.678901Z","type":"Normal","reason":"R","action":"A",` +
		`"reportingController":"c.example/x","reportingInstance":"i","note":"n","regarding":{"kind":"Pod","namespace":"default","name":"p"}}`
	var cases []Case
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
		{"may be in another namespace than what it regards", `"namespace":"default"`, `"namespace":"other"`, ""},
		{"in the namespace default may regard something without a namespace", `"namespace":"default",`, ``, ""},
		{"has a controller with a qualified name", `"c.example/x"`, `"a/b/c"`, "reportingController"},
		{"has no long instance", `"i"`, `"` + strings.Repeat("i", 129) + `"`, "reportingInstance"},
		{"is no series of one", `"note"`, `"series":{"count":1,"lastObservedTime":"2026-01-02T03:04:06.000000Z"},"note"`, "series.count"},
		{"does without a note", `"note":"n",`, ``, ""},
	} {
		cases = append(cases, Case{"an event " + row.name, func(ctx context.Context, c *client) error {
			body := c.named(strings.Replace(whole, row.old, row.new, 1))
			if row.cause == "" {
				_, err := c.create(ctx, events, body)
				return err
			}
			return answer{422, metav1.StatusReasonInvalid, row.cause}.of(c.do(ctx, "POST", events, "", body))
		}})
	}
	return append(cases, Case{"an event can be made a series, and nothing else of it can change", func(ctx context.Context, c *client) error {
		if _, err := c.create(ctx, events, c.named(whole)); err != nil {
			return err
		}
		path := events + "/" + c.name
		const series = `{"series":{"count":3,"lastObservedTime":"2026-01-02T03:04:06.000000Z"}}`
		for _, kind := range []string{merge, strategic} {
			got, err := c.ok(ctx, "PATCH", path, kind, series)
			if err == nil && (got.Series == nil || got.Series.Count != 3) {
				err = errors.New("no series")
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(
			answer{422, metav1.StatusReasonInvalid, "reason"}.of(c.do(ctx, "PATCH", path, merge, `{"reason":"other"}`)),
			answer{422, metav1.StatusReasonInvalid, "message"}.of(c.do(ctx, "PATCH", path, merge, `{"note":"other"}`)),
			answer{422, metav1.StatusReasonInvalid, "series.count"}.of(c.do(ctx, "PATCH", path, merge, `{"series":{"count":1}}`)),
			missing().of(c.do(ctx, "PATCH", path+"x", merge, series)))
	}})
}

// definitionCases are writes to NetworkAttachmentDefinitions.
func definitionCases() []Case {
	return []Case{{"a definition is created, patched and deleted", func(ctx context.Context, c *client) error {
		d, err := c.definition(ctx, c.name)
		if err != nil {
			return err
		}
		path := definitions + "/" + c.name
		got, err := c.ok(ctx, "PATCH", path, merge, `{"spec":{"config":"{\"a\":1}"}}`)
		return errors.Join(err,
			same("config", got.Spec.Config, `{"a":1}`),
			same("UID", got.Metadata.UID, d.Metadata.UID),
			conflict().of(c.do(ctx, "PATCH", path, merge, `{"metadata":{"resourceVersion":"`+d.Metadata.ResourceVersion+`"}}`)),
			immutable().of(c.do(ctx, "PATCH", path, merge, `{"metadata":{"uid":"other"}}`)),
			answer{415, metav1.StatusReasonUnsupportedMediaType, ""}.of(c.do(ctx, "PATCH", path, strategic, `{}`)),
			answer{code: 200}.of(c.do(ctx, "DELETE", path, "", "")),
			missing().of(c.do(ctx, "GET", path, "", "")))
	}}}
}
