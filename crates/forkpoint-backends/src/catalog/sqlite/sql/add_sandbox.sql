INSERT INTO sandbox (id, driver, name, adopted, head, created, expires, labels, spec)
VALUES (:id, :driver, :name, :adopted, :head, :created, :expires, :labels, :spec)
