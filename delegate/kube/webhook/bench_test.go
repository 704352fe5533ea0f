package webhook

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/bounds"
)

// BenchmarkReview is the review of the largest objects, in shapes that are dear to decode.
// x-size is the memory that it allocates in all, compared with the size of the request.
func BenchmarkReview(b *testing.B) {
	fill := func(before, part, after string) string {
		n := (bounds.Network - len(before) - len(after)) / len(part)
		return before + strings.TrimSuffix(strings.Repeat(part, n), ",") + after
	}
	update := func(kind, object string) string {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","namespace":"a","userInfo":{},"kind":` + kind + `,"operation":"UPDATE","object":` + object + `,"oldObject":` + object + `}}`
	}
	for name, body := range map[string]string{
		"a large string":  update(definitionKind, config(fill(`{"type":"macvlan","x":"`, "xxxxxxxx", `"}`))),
		"many plugins":    update(definitionKind, config(fill(`{"plugins":[`, `{"type":"macvlan"},`, `]}`))),
		"empty plugins":   update(definitionKind, config(fill(`{"plugins":[`, `{},`, `]}`))),
		"numbers":         update(definitionKind, config(fill(`{"type":"macvlan","x":[`, `1,`, `]}`))),
		"not allowed":     update(definitionKind, config(fill(`{"type":"bridge","x":"`, `xxxxxxxx`, `"}`))),
		"empty mappings":  update(podKind, pod(`[{"name":"a","portMappings":[`+strings.TrimSuffix(strings.Repeat("{},", bounds.Annotation/3-20), ",")+`]}]`, "")),
		"many selections": update(podKind, pod(strings.Repeat("a,", bounds.Annotation/2-1)+"a", "")),
	} {
		b.Run(name, func(b *testing.B) {
			h := handler()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/validate", strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N*len(body)), "x-size")
		})
	}
}
