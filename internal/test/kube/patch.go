package kubetest

import (
	"encoding/json"
	"net/http"
)

// merge applies a merge patch (RFC 7386).
func merge(old, patch json.RawMessage) json.RawMessage {
	var from, to map[string]json.RawMessage
	if json.Unmarshal(patch, &from) != nil || from == nil {
		return patch
	}
	if json.Unmarshal(old, &to) != nil || to == nil {
		to = map[string]json.RawMessage{}
	}
	for key, value := range from {
		if string(value) == "null" {
			delete(to, key)
		} else {
			to[key] = merge(to[key], value)
		}
	}
	return mustMarshal(to)
}

// admit checks o, which is to replace old, and gives it what the client cannot change.
func admit(c call, o, old *object) *failure {
	switch {
	case o.meta.ResourceVersion != "" && o.meta.ResourceVersion != old.meta.ResourceVersion:
		return &failure{
			code: http.StatusConflict, reason: "Conflict",
			message: "the object has been modified; please apply your changes to the latest version and try again",
		}
	case o.meta.UID != "" && o.meta.UID != old.meta.UID:
		return invalid("metadata.uid", "field is immutable")
	}
	kept := "status"
	if c.status {
		kept = "spec"
	}
	delete(o.other, kept)
	if value, ok := old.other[kept]; ok {
		o.other[kept] = value
	}
	m := &o.meta
	m.Name, m.Namespace, m.UID, m.ResourceVersion = old.meta.Name, old.meta.Namespace, old.meta.UID, old.meta.ResourceVersion
	m.CreationTimestamp, m.DeletionTimestamp = old.meta.CreationTimestamp, old.meta.DeletionTimestamp
	o.other["kind"], o.other["apiVersion"] = old.other["kind"], old.other["apiVersion"]
	return nil
}
