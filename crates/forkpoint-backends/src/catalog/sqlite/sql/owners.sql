SELECT DISTINCT owner FROM operation
