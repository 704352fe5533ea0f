package kubetest

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
)

// parsePath describes a request with this method and URL in the words of a role. The group has
// the version; it is empty if the path is not that of a resource.
func parsePath(method string, u *url.URL) (r Request, group string) {
	verbs := map[string]string{"GET": "get", "POST": "create", "PUT": "update"}
	r.Verb = cmp.Or(verbs[method], strings.ToLower(method))
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	prefix := map[string]int{"api": 2, "apis": 3}[parts[0]]
	if prefix == 0 || len(parts) <= prefix {
		return r, ""
	}
	group, parts = strings.Join(parts[1:prefix], "/"), parts[prefix:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		r.Namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 1 {
		r.Name = parts[1]
		parts = slices.Delete(parts, 1, 2)
	}
	r.Resource = strings.Join(parts, "/")
	switch {
	case r.Verb != "get" || r.Name != "":
	case u.Query().Has("watch"):
		r.Verb = "watch"
	default:
		r.Verb = "list"
	}
	return r, group
}
