package kubetest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// eventErrors says what is wrong with a new event. The real server names the fields as
// the core group does: the note is its message.
func eventErrors(e *eventsv1.Event) field.ErrorList {
	var errs field.ErrorList
	ns := e.Regarding.Namespace
	if ns == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), ns, "does not match event.namespace"))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	errs = append(errs, seriesErrors(e.Series)...)
	if e.EventTime.IsZero() {
		return append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.ReportingController != "" {
		for _, msg := range validation.IsQualifiedName(e.ReportingController) {
			errs = append(errs, field.Invalid(field.NewPath("reportingController"), e.ReportingController, msg))
		}
	}
	for _, f := range []struct {
		name, value string
		needed      bool
		limit       int
	}{
		{"reportingController", e.ReportingController, true, 317}, // of a qualified name
		{"reportingInstance", e.ReportingInstance, true, 128},
		{"action", e.Action, true, 128},
		{"reason", e.Reason, true, 128},
		{"message", e.Note, false, 1024},
	} {
		if f.needed && f.value == "" {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if len(f.value) > f.limit {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", fmt.Sprintf("can have at most %d characters", f.limit)))
		}
	}
	return errs
}

func seriesErrors(s *eventsv1.EventSeries) field.ErrorList {
	var errs field.ErrorList
	if s != nil && s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if s != nil && s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// eventChangeErrors says what is wrong with a change: only metadata and series may.
func eventChangeErrors(e, old *eventsv1.Event) field.ErrorList {
	errs := seriesErrors(e.Series)
	for _, f := range []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.Regarding, old.Regarding},
		{"related", e.Related, old.Related},
		{"reason", e.Reason, old.Reason},
		{"message", e.Note, old.Note},
		{"type", e.Type, old.Type},
		{"eventTime", e.EventTime, old.EventTime},
		{"action", e.Action, old.Action},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		if !equality.Semantic.DeepEqual(f.is, f.was) {
			errs = append(errs, field.Invalid(field.NewPath(f.name), f.is, "field is immutable"))
		}
	}
	return errs
}
